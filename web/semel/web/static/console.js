// What pages do beside htmx: keys, theme, live rates, live tail. Everything that comes from a
// message is put into the page as text, never as markup.
"use strict";

const KEPT_POINTS = 600;
const KEPT_ROWS = 500;
const byId = (name) => document.getElementById(name);

// --- theme

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setUpTheme() {
  byId("theme").addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("semel-theme", next);
    } catch {
      // It holds for this page alone.
    }
    document.dispatchEvent(new Event("semel-theme"));
  });
}

// --- keys

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable], dialog[open]") !== null;
}

function moveRow(step) {
  const links = [...document.querySelectorAll(".rows tbody tr a:first-of-type, .rows.plain a")];
  if (links.length === 0) return;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step;
  links[Math.min(Math.max(next, 0), links.length - 1)].focus();
}

function setUpKeys() {
  const keys = byId("keys");
  let isGoing = false;
  byId("help").addEventListener("click", () => keys.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (isGoing) {
      isGoing = false;
      const target = document.querySelector(`nav [data-go="${CSS.escape(event.key)}"]`);
      if (target) {
        event.preventDefault();
        target.click();
      }
      return;
    }
    switch (event.key) {
      case "g":
        isGoing = true;
        setTimeout(() => { isGoing = false; }, 1500);
        return;
      case "/": {
        const search = document.querySelector("[data-search]");
        if (search) {
          event.preventDefault();
          search.focus();
        }
        return;
      }
      case "j":
        moveRow(1);
        return;
      case "k":
        moveRow(-1);
        return;
      case "?":
        keys.showModal();
    }
  });
}

// --- what is fed live

function follow(url, onEvent, problem) {
  const source = new EventSource(url);
  const tell = (text) => {
    problem.textContent = text;
    problem.hidden = text === "";
  };
  for (const [name, handler] of Object.entries(onEvent)) {
    source.addEventListener(name, (event) => {
      tell("");
      handler(JSON.parse(event.data));
    });
  }
  source.addEventListener("problem", (event) => {
    tell(`The cluster does not answer: ${JSON.parse(event.data)}. This goes on by itself.`);
  });
  source.addEventListener("error", () => {
    tell(
      source.readyState === EventSource.CLOSED
        ? "This page is not fed any more: load it again."
        : "The console does not answer. This goes on by itself."
    );
  });
  addEventListener("pagehide", () => source.close());
  return source;
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const figures = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

function chart(element, data, show) {
  const axis = { stroke: style("--ink"), grid: { stroke: style("--line") }, ticks: { stroke: style("--line") } };
  return new uPlot(
    {
      width: Math.max(element.clientWidth, 200),
      height: 200,
      cursor: { drag: { x: false, y: false } },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 1) * 1.1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 70, values: (_, ticks) => ticks.map(show) }],
      series: [
        { label: "time, UTC", value: (_, value) => (value === null ? "" : clock(value)) },
        { label: "produced", stroke: style("--first"), width: 2, value: (_, value) => (value === null ? "" : show(value)) },
        { label: "fetched", stroke: style("--second"), width: 2, dash: [6, 4], value: (_, value) => (value === null ? "" : show(value)) },
      ],
    },
    data,
    element
  );
}

function setUpRates() {
  const feed = byId("rates");
  if (!feed) return;
  let points = [];
  let charts = [];
  const columns = (...picked) => picked.map((place) => points.map((point) => point[place]));
  const draw = () => {
    const messages = columns(0, 1, 2);
    const sizes = columns(0, 3, 4);
    if (charts.length === 0) {
      charts = [
        chart(byId("chart-messages"), messages, (value) => short.format(value)),
        chart(byId("chart-bytes"), sizes, bytes),
      ];
    } else {
      charts[0].setData(messages);
      charts[1].setData(sizes);
    }
    const last = points[points.length - 1];
    if (last) {
      byId("rates-text").textContent =
        `produced ${figures.format(last[1])} messages a second (${bytes(last[3])}), ` +
        `fetched ${figures.format(last[2])} (${bytes(last[4])})`;
    }
  };
  const redraw = () => {
    for (const each of charts) each.destroy();
    charts = [];
    draw();
  };
  document.addEventListener("semel-theme", redraw);
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  });
  follow(
    feed.dataset.feed,
    {
      history: (found) => {
        points = found;
        draw();
      },
      point: (found) => {
        points.push(found);
        points = points.slice(-KEPT_POINTS);
        draw();
      },
    },
    byId("rates-problem")
  );
}

function setUpTail() {
  const body = byId("tail");
  if (!body) return;
  const pause = byId("tail-pause");
  let isPaused = false;
  let [seen, shown, skipped] = [0, 0, 0];
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
  });
  const cell = (row, text, kind) => {
    const made = document.createElement("td");
    made.className = kind;
    made.append(text);
    row.append(made);
  };
  const count = () => {
    byId("tail-count").textContent =
      `scanned ${figures.format(seen)}, shown ${figures.format(shown)}` +
      (skipped ? `, ${figures.format(skipped)} came too fast to be shown` : "");
  };
  follow(
    body.dataset.feed,
    {
      begun: count,
      messages: (found) => {
        seen += found.scanned;
        skipped += found.skipped;
        if (isPaused) {
          skipped += found.rows.length;
        } else {
          for (const each of found.rows) {
            const row = document.createElement("tr");
            const link = document.createElement("a");
            link.href = `${body.dataset.message}&queue=${each.queue}&offset=${each.offset}`;
            link.append(figures.format(each.offset));
            cell(row, each.time, "whole");
            cell(row, String(each.queue), "num");
            cell(row, link, "num");
            cell(row, each.key, "mono");
            cell(row, each.value, "mono");
            cell(row, each.size, "num");
            body.prepend(row);
          }
          shown += found.rows.length;
          while (body.rows.length > KEPT_ROWS) body.deleteRow(-1);
        }
        count();
      },
    },
    byId("tail-problem")
  );
}

// --- boxes that tick all others

function setUpTicks() {
  for (const all of document.querySelectorAll("[data-tick-all]")) {
    all.addEventListener("change", () => {
      for (const each of document.querySelectorAll(`input[name="${CSS.escape(all.dataset.tickAll)}"]`)) {
        each.checked = all.checked;
      }
    });
  }
}

setUpTheme();
setUpKeys();
setUpRates();
setUpTail();
setUpTicks();
