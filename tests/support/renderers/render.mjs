// Reads a JSON array of Markdown texts from stdin; prints their HTML by each renderer, with HTML and links let through.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.argv[2]}/package.json`));
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const markdownIt = (await load("markdown-it")).default({ html: true, linkify: true });
const { marked } = await load("marked");
const { micromark } = await load("micromark");
const { gfm, gfmHtml } = await load("micromark-extension-gfm");
const options = {
  extensions: [gfm()],
  htmlExtensions: [gfmHtml()],
  allowDangerousHtml: true,
  allowDangerousProtocol: true,
};
const renderers = {
  "markdown-it": (text) => markdownIt.render(text),
  marked: (text) => marked.parse(text, { gfm: true, async: false }),
  micromark: (text) => micromark(text, options),
};
// A text on which a renderer fails shows nothing: marked does, on some lists inside quotations.
const page = (html) => (text) => {
  try {
    return html(text);
  } catch {
    return "";
  }
};
const texts = JSON.parse(readFileSync(0, "utf-8"));
process.stdout.write(
  JSON.stringify(Object.fromEntries(Object.entries(renderers).map(([name, html]) => [name, texts.map(page(html))]))),
);
