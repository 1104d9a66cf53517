// What is wrong with the page, as a JSON list of texts: contrast, names, labels,
// order of headings, regions that scroll, tables, pictures, width. The rules are
// those of WCAG 2.2 that a program can judge.
(function () {
  "use strict";
  var wrong = [];
  function say(text, element) {
    var line = text + (element ? ": " + element.outerHTML.slice(0, 120) : "");
    if (wrong.length < 40 && wrong.indexOf(line) < 0) wrong.push(line);
  }
  function all(selector) { return Array.prototype.slice.call(document.querySelectorAll(selector)); }
  function shown(e) { return e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden"; }

  // Contrast: 4.5 to 1 for text, 3 to 1 for large text and for marks of charts.
  function rgb(text) {
    var m = text.match(/rgba?\(([^)]+)\)/);
    if (!m) return null;
    var p = m[1].split(/[,\/ ]+/).map(Number);
    return { r: p[0], g: p[1], b: p[2], a: p.length > 3 ? p[3] : 1 };
  }
  function luminance(c) {
    return [c.r, c.g, c.b].map(function (v) { v /= 255; return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); })
      .reduce(function (sum, v, i) { return sum + v * [0.2126, 0.7152, 0.0722][i]; }, 0);
  }
  function ratio(a, b) { var x = luminance(a), y = luminance(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); }
  function over(top, below) {
    return { r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a), b: top.b * top.a + below.b * (1 - top.a), a: 1 };
  }
  function ground(e) {
    for (; e; e = e.parentElement) {
      var c = rgb(getComputedStyle(e).backgroundColor);
      if (c && c.a === 1) return c;
    }
    return { r: 255, g: 255, b: 255, a: 1 };
  }
  var walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), node, texts = 0;
  while ((node = walker.nextNode())) {
    var e = node.parentElement;
    if (!node.textContent.trim() || /^(SCRIPT|STYLE|title|desc)$/.test(e.tagName) || !shown(e)) continue;
    var style = getComputedStyle(e), svg = e.closest("svg");
    var colour = rgb(svg ? style.fill : style.color), size = parseFloat(style.fontSize);
    var large = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700;
    texts++;
    if (colour && ratio(over(colour, ground(e)), ground(e)) < (large ? 3 : 4.5)) say("contrast " + ratio(over(colour, ground(e)), ground(e)).toFixed(2), e);
  }
  if (texts < 20) say("only " + texts + " texts were looked at");
  all("svg .bar, svg.plot [class^=f-s], .key rect").forEach(function (e) {
    var c = rgb(getComputedStyle(e).fill);
    if (c && !e.closest(".quiet") && ratio(c, ground(e)) < 3) say("contrast " + ratio(c, ground(e)).toFixed(2) + " of marks of class " + e.getAttribute("class"));
  });

  // Names and labels.
  function name(e) {
    var by = e.getAttribute("aria-labelledby");
    if (by) return by.split(/\s+/).map(function (id) { var o = document.getElementById(id); return o ? o.textContent : ""; }).join(" ").trim();
    return (e.getAttribute("aria-label") || "").trim();
  }
  all("a[href], button").forEach(function (e) {
    var picture = e.querySelector("img[alt]");
    if (!name(e) && !e.textContent.trim() && !(picture && picture.alt)) say("no name", e);
  });
  all("input, select, textarea").forEach(function (e) { if (!name(e) && !(e.labels && e.labels.length)) say("no label", e); });
  all("img").forEach(function (e) { if (!e.getAttribute("alt")) say("no alternative text", e); });
  all("svg").forEach(function (e) { if (e.getAttribute("aria-hidden") !== "true" && (e.getAttribute("role") !== "img" || !name(e))) say("svg without a name", e); });
  all("[role=region]").forEach(function (e) { if (!name(e)) say("region without a name", e); });
  all("[aria-labelledby]").forEach(function (e) {
    e.getAttribute("aria-labelledby").split(/\s+/).forEach(function (id) { if (!document.getElementById(id)) say("names an id that is not there", e); });
  });

  // Structure.
  if (document.documentElement.lang !== "en") say("no language");
  if (!document.title) say("no title");
  if (all("main").length !== 1 || all("h1").length !== 1) say("not one main and one h1");
  var level = 0;
  all("h1, h2, h3, h4").forEach(function (h) {
    var l = Number(h.tagName[1]);
    if (l > level + 1) say("a level of headings is skipped", h);
    level = l;
  });
  all("table").forEach(function (table) {
    if (!table.caption) say("table without a caption", table);
    if (!table.tHead || Array.prototype.some.call(table.tHead.rows[0].cells, function (c) { return c.tagName !== "TH" || c.scope !== "col"; })) say("table without heads", table);
  });
  all("ul, ol").forEach(function (list) {
    if (Array.prototype.some.call(list.children, function (c) { return c.tagName !== "LI"; })) say("list with something else in it", list);
  });
  var ids = {};
  all("[id]").forEach(function (e) { if (ids[e.id]) say("id twice", e); ids[e.id] = true; });

  // What scrolls can be reached by keyboard; the page itself does not scroll sideways.
  all("*").forEach(function (e) {
    var s = getComputedStyle(e);
    if (/(auto|scroll)/.test(s.overflowX) && e.scrollWidth > e.clientWidth + 1 && e !== document.documentElement && e.tabIndex < 0) say("scrolls and cannot be focused", e);
  });
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth + 1) {
    var widest = all("body *").filter(function (e) { return !e.closest(".scroll") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1; })[0];
    say("the page is wider than the screen", widest);
  }

  // Targets that can be hit.
  all("button, input, select").forEach(function (e) {
    var r = e.getBoundingClientRect();
    if (shown(e) && (r.height < 24 || r.width < 24)) say("target of " + r.width.toFixed(0) + " by " + r.height.toFixed(0), e);
  });

  // Pictures load, charts have marks inside their frame.
  all("img").forEach(function (e) {
    e.loading = "eager";
    if (e.complete && e.naturalWidth === 0) say("picture does not load", e);
  });
  all("svg.gantt").forEach(function (e) { if (!e.querySelector("rect.bar")) say("chart without bars", e); });
  all("svg.plot").forEach(function (e) { if (!e.querySelector("[class^=f-s]")) say("plot without marks", e); });
  return JSON.stringify(wrong);
})()
