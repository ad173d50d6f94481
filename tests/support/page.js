// Checks the page drawn in each frame: nothing ends beyond its width, and text has enough contrast (WCAG 2).
const said = [];
const parts = colour => colour.match(/[\d.]+/g).map(Number);
const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255) + 0.05;

const look = frame => {
  const page = frame.contentDocument;
  const style = element => frame.contentWindow.getComputedStyle(element);
  const width = page.documentElement.clientWidth;
  let least = 21, texts = 0;
  for (const element of page.body.querySelectorAll("*:not(svg *)")) {
    const words = element.textContent.trim().slice(0, 40);
    const right = Math.round(element.getBoundingClientRect().right);
    if (right > width) said.push(`WRONG ${frame.width}: ${element.tagName} "${words}" ends at ${right} of ${width}`);
    const own = [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    let behind = element;
    while (behind.parentElement && (parts(style(behind).backgroundColor)[3] ?? 1) == 0) behind = behind.parentElement;
    const [a, b] = [style(element).color, style(behind).backgroundColor].map(colour => light(parts(colour)));
    const contrast = Math.max(a, b) / Math.min(a, b);
    if (contrast < 4.5) said.push(`WRONG ${frame.width}: "${words}" has a contrast of ${contrast.toFixed(2)}`);
    least = Math.min(least, contrast);
    texts++;
  }
  said.push(`${frame.width} on ${style(page.body).backgroundColor}: ${texts} texts, contrast ${least.toFixed(2)}`);
};

addEventListener("load", () => {
  document.querySelectorAll("iframe").forEach(look);
  document.getElementById("said").textContent = said.join("\n");
});
