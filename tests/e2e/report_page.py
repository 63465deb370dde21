"""Looks at a page of `mortise report` in headless Chromium: no console errors, nothing wider than the page at 1200 and
400 pixels, light and dark, and a browser of completions that finds, filters, colors and compares, also in 100,000 rows.

usage: report_page.py BUILD_DIR [--keep FOLDER]

Exits with 77 (skipped) where there is no Chromium. --keep writes the page and its pictures into FOLDER.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from chromium import Chromium, find_chromium

STEPS, PROMPTS, SAMPLES = 6, 5, 4
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"

# What is done in the page, and what must come of it. What the page does later is waited for: a busy machine draws frames
# rarely.
CHECKS = """
(async () => {
  const problems = [], expect = (is_so, text) => { if (!is_so) problems.push(text); };
  const comes = async (is_so, text) => {
    for (let i = 0; i < 2400 && !is_so(); ++i) await new Promise((go) => setTimeout(go, 25));
    expect(is_so(), typeof text === 'string' ? text : text());
  };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const selects = all('#browser select'), count = () => document.querySelector('#browser p').textContent;
  const counts = (text) => comes(() => count() === text, () => `${count()} in place of ${text}`);
  const choose = (i, value) => { selects[i].value = value; selects[i].dispatchEvent(new Event('change')); };
  const search = (text) => { const box = document.querySelector('#browser input'); box.value = text; box.dispatchEvent(new Event('input')); };
  await comes(() => all('canvas').length > 0, 'no chart is drawn');
  expect(document.documentElement.scrollWidth <= innerWidth, `the page is ${document.documentElement.scrollWidth} wide`);
  const light = (name) => getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
  const is_dark = matchMedia('(prefers-color-scheme: dark)').matches;
  expect(is_dark === (light('color') > light('backgroundColor')), 'the colors are not those of the scheme');
  expect(Math.abs(light('color') - light('backgroundColor')) > 500, 'text and background are alike');
  expect(document.querySelector('.finding') !== null, 'no finding is shown');
  expect(document.querySelector('#finding-list .error').textContent === 'line 2 of metrics.jsonl is damaged and left out',
    'the damaged line is not told');
  const names = all('.chart .name').map((one) => one.textContent);
  expect(names.includes('critic/score/mean = reward'), 'metrics that are equal have a chart each');
  expect(!names.some((name) => name.includes('frac_reward_nan')), 'a number that is always 0 has a chart');
  expect(document.querySelector('.zero').textContent === '0 at every step: frac_reward_nan', 'a number that is always 0 is not named');
  expect(names.includes('time by stage'), 'there are no times by stage');
  for (const canvas of all('canvas')) {
    const { min, max, ticks } = Chart.getChart(canvas).scales.y, labels = ticks.map((one) => one.label);
    expect(labels.every((label) => label.length <= 8), `${canvas.ariaLabel} has the labels ${labels}`);
    expect(new Set(labels).size === labels.length, `${canvas.ariaLabel} has equal labels: ${labels}`);
    if (canvas.ariaLabel.includes('pearson')) expect(max - min > 0.1, 'the noise of a number fills its chart');
  }
  await counts('5 of 5 prompts.');
  choose(1, 'all');
  await counts('30 of 30 prompts.');
  choose(3, 'failed');
  await counts('6 of 30 prompts.');
  choose(3, 'all');
  await counts('30 of 30 prompts.');
  search('needle');
  await counts('1 of 30 prompts.');
  search('');
  await counts('30 of 30 prompts.');
  choose(1, '6');
  await counts('5 of 5 prompts.');
  choose(2, 'spread');
  await comes(() => /± 0.5 /.test(document.querySelector('.group summary').textContent), 'the largest spread is not first');
  choose(2, 'batch');
  choose(4, 'advantage');
  await comes(() => !/± 0.5 /.test(document.querySelector('.group summary').textContent), 'the order is not that of the batch');
  for (const group of all('.group')) group.open = true;
  const colors = () => all('.tokens span').map((one) => one.style.backgroundColor);
  await comes(() => colors().length === 8 * 3 && colors().every((color) => color !== ''), () => `${colors().length} tokens have a color`);
  expect(new Set(colors()).size > 1, 'all tokens have one color');
  expect(all('details.turn').length === 4, 'turns are not shown');
  expect(all('details.turn[open]').length === 2, 'a tool\\'s turn is not folded');
  expect(all('details.turn summary').some((one) => one.textContent === 'calls calc'), 'a call has no name');
  const first = document.querySelector('.group');
  first.querySelector('button').click();
  await comes(() => first.querySelectorAll('ins').length > 0 && first.querySelectorAll('del').length > 0, 'no difference is shown');
  expect(document.documentElement.scrollWidth <= innerWidth, 'open groups are wider than the page');
  expect(window.hacked === undefined, 'a completion ran a script');
  return problems;
})()
"""


def completion(step, prompt, sample):
    index = prompt * SAMPLES + sample
    text = f"step {step} says {index}" + (" needle" if (step, index) == (3, 7) else "") + (HOSTILE if index == 9 else "")
    row = {"step": step, "input": f"Question {prompt}", "output": text, "gts": str(prompt),
           "score": float(sample % 2) if prompt == 2 else 1.0, "rewards": {"math": 1.0}, "errors": {"math": None},
           "advantage": 0.5, "finish_reason": "stop", "prompt_index": prompt, "sample_index": sample,
           "weight_version": step, "prompt_token_ids": [1], "token_ids": [1, 2, 3]}
    if index == 4:
        row.update(score=None, rewards={"math": None}, errors={"math": "took longer than 10 s"})
    if index == 19:
        row["turns"] = [{"role": "assistant", "content": "Wait.", "tool_calls": [{"name": "calc", "arguments": {"x": 1}}]},
                        {"role": "tool", "content": "2"}, {"role": "assistant", "content": "It is 2."}]
    if index < 8:
        row["tokens"] = {"text": ["step", " says", " it"], "advantage": [0.5, -0.25, 1.0], "log_prob": [-1, -2, -3],
                         "rollout_log_prob": [-1, -2, -2.5], "entropy": [0.1, 0.2, 0.3], "ratio": [1, 1.1, 0.9], "clipped": [0, 1, 0]}
    return row


def write_run(run, steps=STEPS, prompts=PROMPTS, samples=SAMPLES):
    (run / "dump").mkdir(parents=True)
    (run / "config.resolved.toml").write_text('[rollout]\nn = 4\n[trainer]\nrollout_data_dir = "dump"\n')
    (run / "log.txt").write_text("2026-01-01T00:00:00.000+00:00 warning " + "a_long_word_" * 40 + "\n")
    with open(run / "metrics.jsonl", "w") as metrics:
        for step in range(1, steps + 1):
            if step == 2:
                metrics.write('{"step": 1, "rew\n')  # as a power loss leaves it
            row = {"step": step, "reward": 0.1 * step, "critic/score/mean": 0.1 * step, "entropy": 1 / step,
                   "frac_reward_nan": 0.0, "training/rollout_probs_diff_mean": 1e-7 * (1 + step / 10),
                   "training/rollout_actor_probs_pearson_corr": 1 - 1e-12 * step,
                   "frac_reward_zero_std": 0.9, "timing_s/gen": 1.0, "timing_s/update_actor": 2.0,
                   "val-core/a_source_with_a_long_name/reward/mean@1": 0.5, "val-aux/a_source_with_a_long_name/reward/stderr@1": 0.1}
            metrics.write(json.dumps(row) + "\n")
    for step in range(1, steps + 1):
        rows = [completion(step, prompt, sample) for prompt in range(prompts) for sample in range(samples)]
        (run / f"dump/{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def look(browser, folder, scheme, width):
    browser.console.clear()
    browser.open(f"file://{folder}/page.html", width, 3000, dark=scheme == "dark")
    problems = browser.ask(CHECKS)
    browser.picture(folder / f"{scheme}_{width}.png")
    return [f"{scheme}, {width} pixels: {one}" for one in problems + browser.console]


# A search over 100,000 rows in 50 steps pauses, so that the page can tell how far it is. It lists only the rows that it
# shows.
LARGE = (50, 500, 4)
SEARCHED = """
(async () => {
  const count = document.querySelector('#browser p'), told = new Set();
  new MutationObserver(() => told.add(count.textContent)).observe(count, { childList: true, characterData: true, subtree: true });
  const box = document.querySelector('#browser input'), step = document.querySelectorAll('#browser select')[1];
  const search = async (text) => {
    box.value = text;
    box.dispatchEvent(new Event('input'));
    const end = (text === 'needle' ? '1 of' : '25000 of') + ' 25000 prompts.';
    for (let i = 0; i < 1200 && !told.has(end); ++i) await new Promise((go) => setTimeout(go, 50));
    return count.textContent;
  };
  step.value = 'all';
  const one = await search('needle'), all = await search('says');
  const pauses = [...told].filter((text) => text.endsWith(' of 50 steps are searched.')).length;
  return { one, all, pauses, elements: document.querySelectorAll('*').length };
})()
"""


def look_at_large_run(browser, build, folder):
    write_run(folder / "large", *LARGE)
    subprocess.run([build / "bin/mortise", "report", folder / "large", "--completions", "100000", "-o", folder / "large.html"],
                   check=True, stdout=subprocess.DEVNULL)
    browser.console.clear()
    browser.open(f"file://{folder}/large.html")
    seen = browser.ask(SEARCHED)
    is_well = (seen["one"].startswith("1 of 25000 prompts.") and seen["all"].startswith("25000 of 25000 prompts.") and
               seen["pauses"] >= 2 and seen["elements"] < 1000)
    return browser.console + ([] if is_well else [f"100,000 rows: {seen}"])


def main():
    build = pathlib.Path(sys.argv[1])
    chromium = find_chromium()
    if chromium is None:
        print("skipped: there is no Chromium, which only ./dev pictures installs (Debian's package chromium)")
        return 77
    scratch = tempfile.TemporaryDirectory()
    folder = pathlib.Path(sys.argv[3] if "--keep" in sys.argv else scratch.name)
    folder.mkdir(exist_ok=True)
    folder = folder.resolve()
    write_run(folder / "run")
    subprocess.run([build / "bin/mortise", "report", folder / "run", "-o", folder / "page.html"], check=True)
    widths, faults = (1200, 400), []
    browser = Chromium(folder)
    try:
        for scheme in ("light", "dark"):
            for width in widths:
                faults += look(browser, folder, scheme, width)
        faults += look_at_large_run(browser, build, folder)
    finally:
        browser.close()
    print("\n".join(faults) or f"{chromium}: light and dark at {widths} pixels are well")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
