// The explorer's page in a cell's output: in a frame of its own, which asks the kernel by messages and nothing else.
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = model.get("title");
  frame.style.cssText = `display: block; width: 100%; height: ${model.get("height")}px; border: 1px solid #8884; border-radius: 8px;`;
  frame.srcdoc = model.get("page");
  const asked = (event) => {
    const said = event.data;
    if (event.source !== frame.contentWindow || !said || typeof said.view !== "string" || typeof said.id !== "string") return;
    model.send({ id: said.id, view: said.view, request: said.request });
  };
  const answered = (message) => frame.contentWindow?.postMessage(message, "*");
  addEventListener("message", asked);
  model.on("msg:custom", answered);
  el.append(frame);
  return () => { removeEventListener("message", asked); model.off("msg:custom", answered); };
}
export default { render };
