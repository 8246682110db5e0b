// Draws each graph of the page: dagre places the boxes, and SVG elements are made from data, never from markup.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDEST = 28;

  const element = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const short = (text) => ([...text].length > WIDEST ? [...text].slice(0, WIDEST - 1).join("") + "…" : text);

  const label = (node) => (node.id === "__start__" ? "start" : node.id === "__end__" ? "end" : short(node.id));

  const facts = (node) => {
    const found = [];
    if (node.runs > 1) found.push(`×${node.runs}`);
    if (node.denied) found.push(`✗ ${node.denied} denied`);
    if (node.failed) found.push(`! ${node.failed} failed`);
    return found.join(" ");
  };

  const draw = (data, place) => {
    const graph = new dagre.graphlib.Graph({ multigraph: true });
    graph.setGraph({ rankdir: "LR", nodesep: 24, ranksep: 48, marginx: 8, marginy: 8 });
    graph.setDefaultEdgeLabel(() => ({}));
    // dagre keeps nodes as keys of an object, so they get numbers for names: a node may be called __proto__.
    const numbers = new Map(data.nodes.map((node, number) => [node.id, `n${number}`]));
    for (const node of data.nodes) {
      const longest = Math.max(label(node).length, (node.instruction || "").split(".").pop().length, facts(node).length);
      graph.setNode(numbers.get(node.id), { node, width: 24 + 7.5 * longest, height: 26 + (node.instruction ? 15 : 0) + (facts(node) ? 15 : 0) });
    }
    data.edges.forEach((edge, number) => graph.setEdge(numbers.get(edge.from), numbers.get(edge.to), { edge, width: edge.count > 1 ? 24 : 1, height: 14, labelpos: "c" }, String(number)));
    dagre.layout(graph);
    const { width, height } = graph.graph();
    const taken = data.edges.filter((edge) => edge.count);
    const told = taken.map((edge) => `${edge.from} to ${edge.to}${edge.count > 1 ? ` ${edge.count} times` : ""}`).join(", ");
    const svg = element("svg", { class: "drawn", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Path taken: ${told || "none"}` });
    const id = `arrow-${place.id}`;
    const defs = element("defs", {});
    for (const kind of ["taken", "open"]) {
      const marker = element("marker", { id: `${id}-${kind}`, class: kind, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" });
      marker.append(element("path", { d: "M0 0 8 4 0 8z" }));
      defs.append(marker);
    }
    svg.append(defs);
    for (const each of graph.edges()) {
      const { edge, points, x, y } = graph.edge(each);
      const kind = edge.count ? "taken" : "open";
      const line = points.map((point, at) => `${at ? "L" : "M"}${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join("");
      svg.append(element("path", { class: `edge ${kind} ${edge.kind}`, d: line, "marker-end": `url(#${id}-${kind})`, "data-from": edge.from, "data-to": edge.to, "data-count": edge.count }));
      if (edge.count > 1) svg.append(element("text", { class: "count", x, y, "text-anchor": "middle" }, `×${edge.count}`));
    }
    for (const name of graph.nodes()) {
      const { node, x, y, width: wide, height: high } = graph.node(name);
      const kind = node.denied ? "denied" : node.failed ? "failed" : node.runs ? "ran" : "idle";
      const box = element("g", { class: `box ${kind}`, "data-node": node.id });
      box.append(element("title", {}, node.id));
      box.append(element("rect", { x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 5 }));
      const lines = [label(node), node.instruction ? node.instruction.split(".").pop() : "", facts(node)].filter(Boolean);
      lines.forEach((text, at) => box.append(element("text", { class: at ? "fact" : "name", x, y: y - high / 2 + 18 + 15 * at, "text-anchor": "middle" }, text)));
      svg.append(box);
    }
    place.replaceChildren(svg);
    place.tabIndex = 0;
    place.setAttribute("role", "region");
    place.setAttribute("aria-label", "Drawing of the graph");
  };

  const drawAll = () => {
    for (const data of document.querySelectorAll("script.drawing")) {
      const place = document.getElementById(data.dataset.into);
      if (!place.firstChild) draw(JSON.parse(data.textContent), place);
    }
  };

  drawAll();
  document.addEventListener("htmx:after:swap", drawAll); // the thread has grown
})();
