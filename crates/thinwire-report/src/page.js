// Values under the pointer: the page says the same without it.
const units = {
  steps: v => Math.round(v).toLocaleString("en") + " steps",
  loss: v => v.toPrecision(4),
  bytes: v => { let i = 0; while (v >= 999.5 && i < 5) { v /= 1000; i++; } return v.toPrecision(3) + " " + ["", "k", "M", "G", "T", "P"][i] + "B"; },
  seconds: v => v < 300 ? v.toPrecision(3) + " s" : v < 10800 ? (v / 60).toPrecision(3) + " min" : (v / 3600).toPrecision(3) + " h",
};

function axis(text, start, end) {
  const [kind, unit, from, to] = text.split(" ");
  const a = +from, b = +to;
  const value = at => { const t = (at - start) / (end - start); return kind === "log" ? a * (b / a) ** t : a + t * (b - a); };
  return at => units[unit](value(at));
}

for (const svg of document.querySelectorAll("svg[data-frame]")) {
  const [left, top, right, bottom] = svg.dataset.frame.split(" ").map(Number);
  const x = axis(svg.dataset.x, left, right), y = axis(svg.dataset.y, bottom, top);
  const runs = new Map();
  for (const line of svg.querySelectorAll("polyline.held-out")) {
    const points = line.getAttribute("points").split(" ").map(p => p.split(",").map(Number));
    runs.set(line.dataset.run, (runs.get(line.dataset.run) || []).concat(points));
  }
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  const box = document.createElement("div");
  box.className = "readout";

  svg.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    if (at.x < left || at.x > right || at.y < top || at.y > bottom) return hide();
    cursor.setAttribute("d", `M${at.x} ${top}V${bottom}`);
    svg.append(cursor);
    box.replaceChildren();
    const head = document.createElement("b");
    head.textContent = x(at.x);
    box.append(head);
    for (const [name, points] of runs) {
      // The last measurement up to here, as long as the line goes on.
      const before = points.filter(p => p[0] <= at.x + 1);
      if (before.length && at.x <= points[points.length - 1][0] + 8) box.append(`\n${name}: ${y(before[before.length - 1][1])}`);
    }
    document.body.append(box);
    const flip = event.clientX + box.offsetWidth + 30 > innerWidth;
    box.style.left = event.pageX + (flip ? -box.offsetWidth - 14 : 14) + "px";
    box.style.top = event.pageY + 14 + "px";
  });
  const hide = () => { cursor.remove(); box.remove(); };
  svg.addEventListener("pointerleave", hide);
}
