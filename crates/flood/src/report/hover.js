// Values under the pointer. The page is whole without this.
for (const plot of document.querySelectorAll(".plot")) {
  const frame = plot.querySelector(".frame");
  const { seconds, lines } = JSON.parse(plot.querySelector("script").textContent);
  const rule = plot.appendChild(document.createElement("div"));
  const tip = plot.appendChild(document.createElement("div"));
  rule.className = "rule";
  tip.className = "tip";
  rule.hidden = tip.hidden = true;
  const nearest = (points, at) => {
    let low = 0, high = points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < at) low = middle + 1; else high = middle;
    }
    const before = points[Math.max(0, low - 1)], here = points[low];
    return at - before[0] < here[0] - at ? before : here;
  };
  const time = (at) => {
    const whole = Math.round(at);
    return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
  };
  const row = (name, value, colour) => {
    const line = tip.appendChild(document.createElement("div"));
    const key = line.appendChild(document.createElement("i"));
    if (colour) key.className = `c${colour}`; else key.remove();
    line.appendChild(document.createElement("span")).textContent = name;
    line.appendChild(document.createElement("b")).textContent = value;
  };
  const leave = () => { rule.hidden = tip.hidden = true; };
  const move = (event) => {
    const box = frame.getBoundingClientRect(), outer = plot.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    if (part < -0.02 || part > 1.02) return leave();
    const at = Math.min(1, Math.max(0, part)) * seconds;
    tip.replaceChildren();
    row("at", time(at));
    for (const { name, colour, points } of lines) {
      const [when, value] = nearest(points, at);
      const near = Math.abs(when - at) <= Math.max(2, seconds / 100);
      row(name, near ? value : "–", colour);
    }
    rule.hidden = tip.hidden = false;
    const x = box.left - outer.left + Math.min(1, Math.max(0, part)) * box.width;
    rule.style.left = `${x}px`;
    const left = part > 0.5 ? x - tip.offsetWidth - 12 : x + 12;
    tip.style.left = `${Math.max(0, Math.min(left, outer.width - tip.offsetWidth))}px`;
  };
  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerdown", move);
  plot.addEventListener("pointerleave", leave);
}
