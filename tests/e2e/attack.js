// What a page can try on a server, in every form that a browser has; returns how each ended.
async ({ target, path, body }) => {
  const url = target + path;
  const json = JSON.stringify(body);
  const ended = {};
  const attempt = async (name, make) => {
    ended[name] = await make().catch(() => "failed");
  };
  const fetched = async (options) => {
    const answer = await fetch(url, { method: "POST", body: json, ...options });
    return answer.type === "opaque" ? "opaque" : String(answer.status);
  };
  const loaded = (element, source) =>
    new Promise((resolve) => {
      element.onload = () => resolve("loaded");
      element.onerror = () => resolve("failed");
      element.src = source;
      document.body.append(element);
    });
  const type = (value) => ({ headers: { "Content-Type": value } });

  await attempt("fetch", () => fetched({ ...type("application/json") }));
  await attempt("fetch with cookies", () => fetched({ ...type("application/json"), credentials: "include" }));
  await attempt("fetch of text", () => fetched({ ...type("text/plain"), credentials: "include" }));
  await attempt("fetch blind, of text", () =>
    fetched({ ...type("text/plain"), mode: "no-cors", credentials: "include" }));
  // Prefect takes a body of no type for JSON.
  await attempt("fetch blind, of no type", () =>
    fetched({ body: new Blob([json]), mode: "no-cors", credentials: "include" }));
  await attempt("preflight", () => fetched({ ...type("application/json"), method: "PUT" }));
  await attempt("read", async () => String((await fetch(`${target}/api/health`, { credentials: "include" })).status));
  await attempt("beacon", async () => {
    navigator.sendBeacon(url, new Blob([json], { type: "text/plain" }));
    return "sent";
  });
  await attempt("form", async () => {
    const frame = Object.assign(document.createElement("iframe"), { name: "answer" });
    const form = Object.assign(document.createElement("form"), {
      action: url, method: "post", enctype: "text/plain", target: "answer",
    });
    const field = Object.assign(document.createElement("input"), { name: `${json.slice(0, -1)},"x":"`, value: '"}' });
    form.append(field);
    document.body.append(frame, form);
    const done = new Promise((resolve) => { frame.onload = () => resolve("sent"); setTimeout(resolve, 5000, "sent"); });
    form.submit();
    return done;
  });
  await attempt("image", () => loaded(new Image(), `${target}/api/health`));
  await attempt("script", () => loaded(document.createElement("script"), `${target}/api/health`));
  await attempt("frame", async () => {
    const frame = document.createElement("iframe");
    await loaded(frame, `${target}/`);
    return "sent";
  });
  for (const protocols of [["prefect"], []]) {
    await attempt(`websocket${protocols.length ? "" : " without protocol"}`, () =>
      new Promise((resolve) => {
        const socket = new WebSocket(target.replace("http", "ws") + "/api/events/out", protocols);
        socket.onopen = () => socket.send(JSON.stringify({ type: "auth", token: null }));
        socket.onmessage = (message) => resolve(JSON.parse(message.data).type);
        socket.onerror = socket.onclose = () => resolve("failed");
      }));
  }
  return ended;
}
