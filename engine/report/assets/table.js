// Sorting and filtering of tables. Without it every page says the same.
(function () {
  "use strict";
  function value(row, column) {
    var cell = row.cells[column];
    if (!cell) return "";
    return cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim();
  }
  function compare(a, b) {
    if (a === b) return 0;
    if (a === "") return 1; // what is not there comes last
    if (b === "") return -1;
    var x = Number(a), y = Number(b);
    if (!isNaN(x) && !isNaN(y)) return x - y;
    return a.localeCompare(b, "en", { numeric: true });
  }
  function sortable(table) {
    var heads = table.tHead.rows[0].cells, body = table.tBodies[0];
    Array.prototype.forEach.call(heads, function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        Array.prototype.forEach.call(heads, function (h) { h.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        Array.prototype.slice.call(body.rows).sort(function (a, b) {
          var x = value(a, column), y = value(b, column);
          var order = compare(x, y);
          return down && x !== "" && y !== "" ? -order : order;
        }).forEach(function (row) { body.appendChild(row); });
      });
    });
  }
  function filterable(table, number) {
    var rows = Array.prototype.slice.call(table.tBodies[0].rows);
    if (rows.length < 4) return;
    var tools = document.createElement("div"), label = document.createElement("label"), input = document.createElement("input"), count = document.createElement("span");
    tools.className = "tools";
    label.htmlFor = input.id = "filter-" + number;
    label.textContent = "Filter: " + table.caption.dataset.name;
    input.type = "search";
    input.autocomplete = "off";
    count.setAttribute("role", "status");
    count.className = "soft";
    tools.append(label, input, count);
    var place = table.parentNode.classList.contains("scroll") ? table.parentNode : table;
    place.parentNode.insertBefore(tools, place);
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/), shown = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        var hit = words.every(function (w) { return text.indexOf(w) >= 0; });
        row.hidden = !hit;
        if (hit) shown++;
      });
      count.textContent = input.value ? shown + " of " + rows.length : "";
    });
  }
  Array.prototype.forEach.call(document.querySelectorAll("table.data"), function (table, number) {
    sortable(table);
    filterable(table, number);
  });
})();
