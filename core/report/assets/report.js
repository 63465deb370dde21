// The page of `mortise report`: charts, tables and the browser of completions. Texts of a run are only ever set as
// textContent, never as HTML.
'use strict';
(() => {
  const runs = JSON.parse(document.getElementById('data').textContent);
  const colors = ['#2f7ed8', '#d9822b', '#2ca05a', '#a64ac9', '#c0392b', '#16a2a8', '#8d6e2f', '#607d8b'];
  const color = (i) => colors[i % colors.length];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const byId = (id) => document.getElementById(id);

  function make(tag, options = {}, ...children) {
    const node = document.createElement(tag);
    if (options.text !== undefined) node.textContent = options.text;
    if (options.className) node.className = options.className;
    for (const [name, value] of Object.entries(options.on || {})) node.addEventListener(name, value);
    for (const [name, value] of Object.entries(options.set || {})) node[name] = value;
    node.append(...children);
    return node;
  }
  const number = (x) => (x === null || x === undefined ? '' : Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3)
    ? x.toExponential(2) : String(Math.round(x * 1e4) / 1e4));

  // ---- head and findings ----
  const steps_of = runs.map((run, i) => {
    const dot = make('span', { className: 'dot' });
    dot.style.background = color(i);
    const text = make('span', { text: `${run.name}: ${run.last_step} steps` });
    byId('runs').append(make('span', { className: 'run', set: { title: run.folder } }, dot, text, make('span', { className: 'state soft' })));
    return text;
  });
  function show_findings() {
    byId('finding-list').replaceChildren(...runs.flatMap((run) => [
      ...(runs.length > 1 ? [make('h3', { text: run.name })] : []),
      ...run.findings.map((finding) => make('div', { className: 'finding' }, make('strong', { text: finding.title }),
        make('p', { text: finding.evidence }), make('p', { text: finding.advice }),
        make('p', { className: 'soft', text: `${finding.rule}: ${finding.docs}` }))),
      ...(run.findings.length === 0 ? [make('p', { className: 'none', text: 'No rule found a fault.' })] : []),
      ...run.damaged.map((text) => make('p', { className: 'error', text }))]));
  }
  show_findings();

  // ---- curves ----
  const groups = [
    ['Reward', [/^reward$/, /^reward_std$/, /^critic\/score\/mean$/, /^critic\/rewards\/mean$/, /^train-core\//, /^rewards\/.*\/(mean|std)$/]],
    ['Failed and equal rewards', [/^frac_reward_/, /^rewards\/.*\/(failed|not_applicable)$/]],
    ['Validation', [/^val-core\//]],
    ['Length', [/^response_length\/(mean|max|clip_ratio)$/, /^prompt_length\/mean$/, /^num_turns\/mean$/, /^tool_call_counts\/mean$/]],
    ['Policy', [/^entropy$/, /^kl$/, /^actor\/ppo_kl$/, /^actor\/reward_kl_penalty$/, /^clip_ratio\/(region|low|high)_mean$/,
      /^actor\/pg_clipfrac/, /^actor\/ratio_/]],
    ['Optimizer', [/^loss$/, /^grad_norm$/, /^learning_rate$/, /^actor\/skipped_updates$/, /^critic\/vf_/, /^critic\/grad_norm$/]],
    ['Sampler against trainer', [/^training\/rollout_probs_diff_(mean|max)$/, /^training\/rollout_actor_probs_pearson_corr$/,
      /^sampling\//, /^rollout_corr\/.*mean$/, /^training\/off_policy\//]],
    ['Time and memory', [/^timing_s\//, /^perf\/(throughput|cpu_memory_used_gb|failed_saves|mfu.*)$/]],
  ];
  let names = [];
  const charts = [];
  const smoothing = byId('smoothing');

  // Exponential mean without its bias towards the beginning. Gaps stay gaps.
  function smooth(values, weight) {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = sum * weight + value * (1 - weight);
      total = total * weight + (1 - weight);
      return sum / total;
    });
  }
  // The interval of a validation's mean: 1.96 standard errors over the prompts on each side.
  function interval(run, metric, i) {
    if (!/^val-.*mean@\d+$/.test(metric)) return [];
    const series = run.metrics[metric];
    const error = run.metrics[metric.replace(/^val-core/, 'val-aux').replace(/mean@(\d+)$/, 'stderr@$1')];
    if (!error || Number(smoothing.value) > 0) return [];
    const at = new Map(error[0].map((x, k) => [x, error[1][k]]));
    const edge = (sign, fill) => ({ label: `${run.name}, interval`, borderWidth: 0, pointRadius: 0, fill,
      backgroundColor: color(i) + '30', data: series[0].map((x, k) => ({ x,
        y: series[1][k] === null || at.get(x) == null ? null : series[1][k] + sign * 1.96 * at.get(x) })) });
    return [edge(1, '+1'), edge(-1, false)];
  }
  // The seconds of a step by stage, on top of one another: a chart for each run.
  const kTimes = 'time by stage', kWhole = /^timing_s\/(step|testing|save_checkpoint)$/;
  const times_of = (run) => (runs.length > 1 ? `${kTimes}: ${run.name}` : kTimes);
  const timed = (metric) => runs.find((run) => times_of(run) === metric);
  function stacked(run) {
    return Object.keys(run.metrics).filter((name) => name.startsWith('timing_s/') && !kWhole.test(name)).map((name, k) => {
      const [steps, values] = run.metrics[name];
      return { label: name.slice(9), borderWidth: 1, pointRadius: 0, fill: true, borderColor: color(k),
        backgroundColor: color(k) + '80', data: steps.map((x, j) => ({ x, y: values[j] })) };
    });
  }
  function datasets(metric) {
    if (timed(metric)) return stacked(timed(metric));
    return runs.flatMap((run, i) => {
      const series = run.metrics[metric];
      if (!series) return [];
      const values = smooth(series[1], Number(smoothing.value));
      return [...interval(run, metric, i), { label: run.name, borderColor: color(i), backgroundColor: color(i), borderWidth: 1.6,
        pointRadius: values.length > 60 ? 0 : 2, spanGaps: true, data: series[0].map((x, k) => ({ x, y: values[k] })) }];
    });
  }
  // Three digits that tell neighboring ticks apart, not the twelve that a difference of two nearly equal numbers has.
  function tick(value, index, ticks) {
    const step = ticks.length > 1 ? Math.abs(ticks[1].value - ticks[0].value) : 0;
    if (value === 0 || Math.abs(value) < step / 1000) return '0';
    const size = Math.floor(Math.log10(Math.abs(value)));
    const digits = Math.min(5, Math.max(1, size - (step ? Math.floor(Math.log10(step)) : size) + 2));
    const short = Number(value.toPrecision(digits));
    return size >= 5 || size < -3 ? short.toExponential() : short.toLocaleString('en-US', { maximumFractionDigits: 6 });
  }
  // A curve without a change lies on a line that says so; the noise of the last bits is no change.
  function range_of(metric) {
    if (timed(metric)) return {};
    const values = values_of(metric).filter((value) => value !== null);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (values.length === 0 || high - low > 1e-5 * Math.max(Math.abs(low), Math.abs(high))) return {};
    return low === 0 ? { suggestedMin: 0, suggestedMax: 1 } : { suggestedMin: low - Math.abs(low) / 2, suggestedMax: high + Math.abs(high) / 2 };
  }
  function draw(box, metric) {
    const is_stacked = timed(metric) !== undefined;
    const canvas = make('canvas', { set: { role: 'img', ariaLabel: `${metric} over the steps` } });
    box.querySelector('.canvas').append(canvas);
    const axis = { grid: { color: css('--line') }, ticks: { color: css('--soft') } };
    charts.push({ metric, chart: new Chart(canvas, { type: 'line', data: { datasets: datasets(metric) },
      options: { animation: false, maintainAspectRatio: false, parsing: false, normalized: true,
        interaction: { mode: 'nearest', axis: 'x', intersect: false },
        plugins: { legend: { display: is_stacked, labels: { boxWidth: 10, color: css('--front') } }, tooltip: {
          filter: (item) => !item.dataset.label.endsWith(', interval'), callbacks: { title: (items) => `step ${items[0].parsed.x}` } } },
        scales: { x: { type: 'linear', ...axis },
          y: { ...axis, ...range_of(metric), ticks: { ...axis.ticks, callback: tick }, stacked: is_stacked } } } }) });
  }
  // A chart is drawn when it comes into view.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target, entry.target.metric);
    }
  }, { rootMargin: '300px' });
  function chart_box({ metric, same }) {
    const box = make('div', { className: 'chart', set: { metric, same } }, make('div', { className: 'name', text: [metric, ...same].join(' = ') }),
      make('div', { className: 'canvas' }));
    watcher.observe(box);
    return box;
  }
  const values_of = (metric) => runs.flatMap((run) => run.metrics[metric]?.[1] ?? []);
  const is_zero = (metric) => !timed(metric) && values_of(metric).every((value) => value === 0);
  // Metrics that are equal in all runs at all steps, as under the names of verl and TRL, share a chart. Two constants are
  // equal by chance.
  function without_doubles(found) {
    const boxes = new Map();
    for (const metric of found) {
      const alone = timed(metric) || new Set(values_of(metric)).size < 2;
      const values = alone ? metric : JSON.stringify(runs.map((run) => run.metrics[metric]));
      if (boxes.has(values)) boxes.get(values).same.push(metric);
      else boxes.set(values, { metric, same: [] });
    }
    return [...boxes.values()];
  }
  // The charts, and in words what was 0 all the time. A search shows all that it finds.
  function charts_of(found, is_search) {
    const zero = is_search ? [] : found.filter(is_zero), rest = found.filter((metric) => !zero.includes(metric));
    const boxes = is_search ? rest.map((metric) => ({ metric, same: [] })) : without_doubles(rest);
    return [make('div', { className: 'charts' }, ...boxes.map(chart_box)),
      ...(zero.length ? [make('p', { className: 'zero soft', set: { zero }, text: `0 at every step: ${zero.join(', ')}` })] : [])];
  }
  function show_curves() {
    names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].sort();
    const wanted = byId('metric-search').value.trim().toLowerCase();
    for (const one of charts.splice(0)) one.chart.destroy();
    const all = wanted ? [[`Metrics with "${wanted}"`, names.filter((name) => name.toLowerCase().includes(wanted)).slice(0, 60)]]
      : groups.map(([title, patterns]) => [title, [...(title === 'Time and memory' ? runs.filter((run) => stacked(run).length).map(times_of) : []),
        ...names.filter((name) => patterns.some((p) => p.test(name)))]]);
    byId('groups').replaceChildren(...all.filter(([, found]) => found.length > 0).flatMap(([title, found]) =>
      [make('h3', { text: title }), ...charts_of(found, wanted)]));
    if (!byId('groups').hasChildNodes())
      byId('groups').append(make('p', { className: 'soft', text: 'No metric has this name.' }));
  }
  byId('metric-search').addEventListener('input', show_curves);
  const is_same_at_end = (metric, other) => runs.every((run) => run.metrics[metric]?.[1].at(-1) === run.metrics[other]?.[1].at(-1));
  function update_curves() {
    const boxes = [...document.querySelectorAll('.chart')];
    const zero = [...document.querySelectorAll('.zero')].flatMap((line) => line.zero);
    if (!zero.every(is_zero) || !boxes.every((box) => box.same.every((other) => is_same_at_end(box.metric, other)))) return show_curves();
    for (const { metric, chart } of charts) {
      chart.data.datasets = datasets(metric);
      Object.assign(chart.options.scales.y, { suggestedMin: undefined, suggestedMax: undefined }, range_of(metric));
      chart.update();
    }
  }
  smoothing.addEventListener('input', update_curves);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show_curves);
  show_curves();

  // ---- tables ----
  function table(head, rows) {
    return make('div', { className: 'wide' }, make('table', {}, make('thead', {}, make('tr', {}, ...head.map((text) => make('th', { text })))),
      make('tbody', {}, ...rows)));
  }
  const keys = [...new Set(runs.flatMap((run) => run.changed))].sort();
  byId('setting-table').append(
    make('p', { className: 'soft', text: runs.length > 1
      ? 'Settings that differ from the defaults. Marked rows differ between the runs.' : 'Settings that differ from the defaults.' }),
    table(['key', ...runs.map((run) => run.name)], keys.map((key) => {
      const values = runs.map((run) => run.settings[key] ?? 'not set');
      return make('tr', { className: new Set(values).size > 1 ? 'differs' : '' }, make('td', { text: key }),
        ...values.map((text) => make('td', { text })));
    })));
  byId('plugin-table').append(table(['run', 'kind', 'plugin', 'pack', 'SHA-256'], runs.flatMap((run) =>
    run.plugins.map((one) => make('tr', {}, make('td', { text: run.name }), make('td', { text: one.kind }),
      make('td', { text: one.name }), make('td', { text: `${one.pack} ${one.version}` }),
      make('td', { text: String(one.sha256).slice(0, 12) }))))));
  function show_events() {
    const events = runs.flatMap((run) => run.events.map((event) => make('tr', {}, make('td', { text: run.name }),
      make('td', { text: event.time.slice(0, 19).replace('T', ' ') }), make('td', { text: event.level, className: event.level }),
      make('td', {}, make('pre', { text: event.text })))));
    byId('event-list').replaceChildren(events.length ? table(['run', 'time (UTC)', 'level', 'text'], events)
      : make('p', { className: 'soft', text: 'No warning, no error, no resume.' }));
  }
  show_events();

  // ---- a run that continues (live.js) ----
  // A row of a step that is there already takes its place: a validation that was owed writes its step again.
  function add_row(i, row) {
    const run = runs[i];
    let is_new = false;
    for (const [name, value] of Object.entries(row)) {
      if (name === 'step' || !(typeof value === 'number' || value === null)) continue;
      is_new ||= run.metrics[name] === undefined;
      const [steps, values] = run.metrics[name] ??= [[], []];
      if (steps.at(-1) === row.step) values[values.length - 1] = value;
      else { steps.push(row.step); values.push(value); }
    }
    run.last_step = Math.max(run.last_step, row.step);
    steps_of[i].textContent = `${run.name}: ${run.last_step} steps`;
    return is_new;
  }

  window.mortise = { runs, make, number, table, show_findings, show_curves, update_curves, show_events, add_row };
})();
