// The sign-in form. It passes the key on and keeps nothing.

import { fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { field } from "./parts.js";

export function signIn(app, problem, onkey) {
  const secret = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const send = (event) => {
    event.preventDefault();
    if (secret.value.trim()) onkey(secret.value.trim());
  };
  fill(app, h("main.sign-in", { id: "main" },
    h("form.card", { onsubmit: send },
      h("div.brand", h("img", { src: "console/icon.svg", alt: "", width: 36, height: 36 }), h("h1", "topics")),
      h("p", "This server needs an API key."),
      field("API key", secret, "The key stays in the memory of this tab. Reloading or closing the tab removes it."),
      problem ? h("p.failure", { role: "alert" }, problem) : null,
      h("button.button.primary", { type: "submit" }, icon("play"), h("span", "Sign in")))));
  document.title = "Sign in · topics";
  secret.focus();
}
