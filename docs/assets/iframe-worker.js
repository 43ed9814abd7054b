// The site's search runs in a worker, and browsers start none for pages that are opened as files. There, and only there,
// a hidden frame does a worker's work: its script hears and says the same messages. The theme would fetch a script for
// this from elsewhere, and does not as one of this name is there.

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.loaded = new Promise((resolve) => {
      const script = inside.document.createElement("script");
      script.src = url;
      script.addEventListener("load", resolve);
      inside.document.body.append(script);
    });
  }

  postMessage(data) {
    this.loaded.then(() => {
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    });
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = FrameWorker;
}
