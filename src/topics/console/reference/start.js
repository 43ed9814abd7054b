// Shows the server's own description of its API. What is tried out goes to this server; a key is kept in memory only.

window.SwaggerUIBundle({
  url: new URL("v0/openapi.json", document.baseURI).href,
  dom_id: "#reference",
  presets: [window.SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  filter: true,
  persistAuthorization: false,
  tryItOutEnabled: true,
  // Nobody else is asked whether the document is valid: a test does that.
  validatorUrl: null,
  onComplete: () => { document.documentElement.dataset.complete = "yes"; },
});
