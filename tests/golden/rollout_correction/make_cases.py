# Makes cases.json: verl's own rollout_corr_helper (wheel verl 0.9.1, unpacked into the folder given first) on random
# inputs. Needs torch. usage: make_cases.py FOLDER cases.json
import ast, json, math, sys, types
import torch
root = sys.argv[1]
torch.manual_seed(7)
src = open(root + "/verl/utils/torch_functional.py").read()
tree = ast.parse(src)
keep = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in ("masked_sum", "masked_mean")]
F = types.ModuleType("verl_F"); F.torch = torch
exec(compile(ast.Module(keep, []), "f", "exec"), F.__dict__)
for name in ["verl", "verl.utils", "verl.utils.torch_functional", "verl.protocol", "verl.trainer", "verl.trainer.config",
             "verl.trainer.config.algorithm", "verl.workers", "verl.workers.config", "verl.workers.config.actor"]:
    sys.modules[name] = types.ModuleType(name)
sys.modules["verl.utils"].torch_functional = F
sys.modules["verl.utils.torch_functional"].__dict__.update(F.__dict__)
class Proto:
    @staticmethod
    def from_dict(tensors): return types.SimpleNamespace(batch=tensors)
sys.modules["verl.protocol"].DataProto = Proto
sys.modules["verl.trainer.config.algorithm"].RolloutCorrectionConfig = dict
sys.modules["verl.workers.config.actor"].PolicyLossConfig = dict
H = types.ModuleType("h")
exec(compile(open(root + "/verl/trainer/ppo/rollout_corr_helper.py").read(), "h", "exec"), H.__dict__)
configs = [dict(rollout_is=i, rollout_is_threshold=t, rollout_is_batch_normalize=b) for i in ("token", "sequence")
           for t in (2.0, "0.5_5.0") for b in (False, True)]
rs = {"token_k1": "0.8_1.25", "token_k2": 0.02, "token_k3": 0.03, "seq_sum_k1": "0.7_1.5", "seq_sum_k2": 0.2, "seq_sum_k3": 0.15,
      "seq_mean_k1": "0.95_1.05", "seq_mean_k2": 0.03, "seq_mean_k3": 0.02, "seq_max_k2": 0.1, "seq_max_k3": 0.08}
configs += [dict(rollout_rs=k, rollout_rs_threshold=v) for k, v in rs.items()]
configs += [dict(rollout_rs="token_k1", rollout_rs_threshold=1.3), dict(),
            dict(rollout_rs="token_k1,seq_mean_k3", rollout_rs_threshold="0.8_1.25,0.05"),
            dict(rollout_rs="seq_max_k2,seq_sum_k3", rollout_rs_threshold=0.3),
            dict(rollout_is="sequence", rollout_is_threshold=2.0, rollout_rs="seq_sum_k1", rollout_rs_threshold="0.5_2.0"),
            dict(rollout_is="token", rollout_is_threshold=2.0, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.999_1.001")]
cases = []
def rows(t, lengths): return [[float(x) for x in r[:n]] for r, n in zip(t, lengths)]
for index, config in enumerate(configs):
    B, T = (5, 7) if index % 3 else (3, 4)
    lengths = [int(x) for x in torch.randint(1, T + 1, (B,))]; lengths[0] = T
    mask = torch.zeros(B, T)
    for i, n in enumerate(lengths): mask[i, :n] = 1
    if index % 4 == 1: mask[0, 1] = 0
    old = -torch.rand(B, T) * 3
    scale = 0.2 if index % 5 else 1.5
    roll = old + scale * torch.randn(B, T)
    if index % 7 == 3: roll[1, 0] = old[1, 0] + 30
    w, m, metrics = H.compute_rollout_correction_and_rejection_mask(old, roll, mask, **config)
    cases.append(dict(config={k: (v if not isinstance(v, float) else str(v)) for k, v in config.items()},
                      old_log_prob=rows(old, lengths), rollout_log_prob=rows(roll, lengths),
                      response_mask=[[int(x) for x in r] for r in rows(mask, lengths)],
                      weights=rows(w.batch["rollout_is_weights"], lengths) if w else None,
                      kept=[[int(x) for x in r] for r in rows(m, lengths)], metrics={k: float(v) for k, v in metrics.items()}))
json.dump(cases, open(sys.argv[2], "w"), separators=(",", ":"))
print(len(cases), cases[0]["metrics"])
