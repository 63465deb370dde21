// Follows the runs of the page: the server sends what is new (docs/playground.md), and the page adds it.
'use strict';
(() => {
  const { runs, add_row, show_findings, show_curves, update_curves, show_events } = window.mortise;
  const live = JSON.parse(document.getElementById('live').textContent), server = window.mortise_server;
  const states = [...document.querySelectorAll('.run .state')];
  const status = runs.map(() => null);
  let is_connected = false, has_new_metric = false, waits = false;

  const link = document.getElementById('to-playground');
  link.href = server.with_token('playground');
  link.hidden = false;

  // Curves are drawn again at most twice a second, however many rows come.
  function draw_soon() {
    if (waits) return;
    waits = true;
    setTimeout(() => {
      waits = false;
      if (has_new_metric) show_curves();
      else update_curves();
      has_new_metric = false;
    }, 500);
  }
  const kSilent_s = 30, kMostEvents = 2000;  // older events of the log leave the page
  const words = { done: 'the run is done', stopped: 'the run was stopped by a signal', failed: 'the run failed: the end of log.txt says why' };
  function show_status() {
    runs.forEach((run, i) => {
      const now = status[i];
      if (!is_connected) { states[i].textContent = '(the server does not answer)'; return; }
      if (now === null) { states[i].textContent = ''; return; }
      const age = now.age_s + (performance.now() - now.received_ms) / 1000;
      const stage = now.stages.at(-1);
      const doing = stage ? `${stage.name} ${stage.done}/${stage.total} ${stage.unit}` : '';
      states[i].textContent = words[now.state] ? `(${words[now.state]})` : age > kSilent_s ? `(no news for ${Math.round(age)} s)`
        : `(step ${now.step}${now.total_steps > 0 ? ` of ${now.total_steps}` : ''}${doing ? `, ${doing}` : ''})`;
      states[i].title = now.headline;
    });
  }
  setInterval(show_status, 1000);

  const takes = {
    metrics: ({ run, rows, num_damaged }) => {
      if (num_damaged) {
        runs[run].damaged.push(`${num_damaged === 1 ? 'a new line of metrics.jsonl is' : `${num_damaged} new lines of metrics.jsonl are`} damaged and left out`);
        show_findings();
      }
      for (const row of rows) has_new_metric = add_row(run, row) || has_new_metric;
      draw_soon();
    },
    log: ({ run, continues, events }) => {
      if (continues && runs[run].events.length) runs[run].events.at(-1).text += continues;
      runs[run].events.push(...events);
      runs[run].events.splice(0, runs[run].events.length - kMostEvents);
      show_events();
    },
    status: (now) => {
      status[now.run] = { ...now, received_ms: performance.now() };
      show_status();
    },
    findings: ({ run, findings }) => {
      runs[run].findings = findings;
      show_findings();
    },
    steps: ({ run, steps }) => window.mortise.add_steps(run, steps),
    heartbeat: () => {},
    // The files are not those of this page: a resume went back, or a new run has its folder.
    reset: () => setTimeout(() => location.reload(), 1000),
  };
  // The browser connects again by itself where a connection ends, and tells the id of the last event. A connection that
  // dies without an end (a proxy, a laptop that slept) is noticed here: the server says something every 15 seconds.
  const kDead_ms = 40000;
  let stream = null, place = live.since, heard_ms = 0;
  function connect() {
    if (stream) stream.close();
    heard_ms = performance.now();
    stream = new EventSource(server.with_token(`events?since=${encodeURIComponent(place)}`));
    stream.addEventListener('open', () => { is_connected = true; show_status(); });
    stream.addEventListener('error', () => { is_connected = false; show_status(); });
    for (const [name, take] of Object.entries(takes)) stream.addEventListener(name, (event) => {
      heard_ms = performance.now();
      place = event.lastEventId || place;
      take(JSON.parse(event.data));
    });
  }
  connect();
  setInterval(() => { if (performance.now() - heard_ms > kDead_ms) connect(); }, 5000);
})();
