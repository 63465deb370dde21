# ./dev bench [peers|step|decode|train|passes|head|losses|device|languages|tokenizer|rewards|scan|busy|ranks|async|memory|scale] [options]: benchmarks of the hot paths. A
# ratio compares two programs within one run. Tests never assert a time.
#   peers     Mortise and TRL in turns (c1, c1v, c2; --runs N, --variant best|kl|default|bfloat16); installs the oracles
#   step      where the time of a step goes, by stage and kind of operation, against this machine's limits ([c1|c1v|c2 ...]
#             [float32|bfloat16] --steps N --threads N); a table, and JSON in build/bench; installs the oracles
#   decode    the generator against transformers' generate, in turns, and against the machine's roofline (c1, c1v, c2, 0.5b;
#             --rounds N, --threads N, --cache static); installs the oracles. --alone: the generator only, in more detail
#   train     packed forward and backward over rows of log-normal lengths, against transformers' padded passes (--rows N,
#             --rounds N); installs the oracles
#   passes    forward, backward and head at the benchmark shapes ([c1|c1v|c2|all] [repeats] [unshared] [bfloat16])
#   head      the fused head: memory by tokens and vocabulary, time against plain torch ([memory|time|all] [rounds])
#   device    passes and sampling on a GPU, in float32 and bfloat16 ([c1|c1v|c2|all] [repeats] [cpu-as-device]); JSON as below
#   device PART...  a GPU against its own limits, torch and transformers, in turns (limits, decode, queue, head, train, losses,
#             optimizer, memory, match, step; --shape 0.5b|1.5b|7b|0.6b|moe|tiny|tiny_moe, --rounds N, --repeats N, cpu-as-device); JSON in
#             build/bench/device, and of a GPU also in docs/measured; installs the oracles
#   losses    every policy loss with gradient over 4.2 M tokens, through its plugin and in eager torch, and the time of one
#             core's pass over the same memory ([rounds] [loss ...])
#   languages one loss and one reward in C++ and in Rust, through the same host ([rounds]); needs cargo
#   tokenizer MB per second of encoding, against the tokenizers wheel, one thread each (--rounds N, FOLDER...); installs
#             the oracles
#   rewards   rows per second of a reward in workers, without faults and with rows that crash and hang (--rows N,
#             --work-us N), and how soon the row after a crash is scored
#   scan      a search of 100 packs
#   busy      the quickstart's step next to one busy process, two of them, a second run, and a fork storm, each as a ratio
#             to a step alone (--rounds N, --steps N, --cores N, SCENARIO...). It needs an otherwise idle machine
#   ranks     2 ranks with 1 thread each against 1 process with 2 threads, in turns, and the bytes they send (--rounds N,
#             --steps N, --workload c1|c2, --deterministic); installs the oracles. --trl: both next to the same two runs of
#             TRL with accelerate over Gloo (--workload c1,c1v,c2, --rounds N, --steps N)
#   async     sampling on a server with one core and training with another, in turn and ahead (trainer.mode), in turns
#             (--rounds N, --steps N, --workload c1|c2); installs the oracles
#   memory    the peak memory of runs against what --dry-run says of them (--steps N, CASE...); installs the oracles
#   scale     the tables of docs/scale.md: a step on 8 to 1,024 GPUs, simulated. --check: runs of 1 to 4 ranks on this machine
#             against what the same model says of them, in turns (--ranks 1,2, --zero-stages 0,2,3, --steps N, --rounds N);
#             installs the oracles. --async: when sampling ahead pays on 8 to 10,240 GPUs, simulated (docs/async.md); 'async'
#             measures it on this machine
source apps/dev/lib.sh
what=${1:-peers}
[[ $# -gt 0 ]] && shift
need_apt build
need_torch
log=$(log_file bench-build)
case $what in
  peers)
    need_apt test
    install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
    say "building"
    build release mortise packs bench_packs >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    mkdir -p build/bench
    exec "$oracles_dir/bin/python" apps/bench/peers/peers.py --program build/release/bin/mortise --packs build/release/lib/mortise/bench_packs \
      --out build/bench "$@"
    ;;
  step)
    need_apt test
    install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
    say "building"
    build release bench_step >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    mkdir -p build/bench
    exec "$oracles_dir/bin/python" apps/bench/peers/step.py --program build/release/bin/bench_step \
      --packs build/release/lib/mortise/bench_packs --out build/bench "$@"
    ;;
  train)
    need_apt test
    install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
    say "building"
    build release bench_train >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    exec "$oracles_dir/bin/python" apps/bench/peers/train_peer.py --program build/release/bin/bench_train --out build/bench/train "$@"
    ;;
  decode | passes | head | losses)
    say "building"
    build release "bench_$what" >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    if [[ $what != decode || ${1:-} == --alone ]]; then
      [[ ${1:-} == --alone ]] && shift
      exec "build/release/bin/bench_$what" "$@"
    fi
    need_apt test
    install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
    exec "$oracles_dir/bin/python" apps/bench/peers/decode_peer.py --program build/release/bin/bench_decode --out build/bench "$@"
    ;;
  device)
    name=cuda words=()
    for word in "$@"; do
      case $word in cuda | cuda:* | cpu-as-device) name=$word ;; *) words+=("$word") ;; esac
    done
    [[ $name != cuda* ]] || "$system_python" apps/dev/device_report.py ask "$name" || exit
    say "building"
    if command -v nvcc >/dev/null; then need_cudnn; fi
    case ${words[0]:-} in limits | decode | queue | head | train | losses | optimizer | memory | match | step | --*)
      need_apt test
      install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
      targets=(bench_device)
      if [[ " ${words[*]} " == *" step "* ]]; then targets+=(mortise packs bench_packs); fi
      build release "${targets[@]}" $(cuda_module_target) >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
      exec "$oracles_dir/bin/python" apps/bench/device/device.py --program build/release/bin/bench_device --out build/bench/device --measured docs/measured \
        --mortise build/release/bin/mortise --packs build/release/lib/mortise/bench_packs --device "$name" "${words[@]}"
      ;;
    esac
    build release bench_passes bench_decode $(cuda_module_target) >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    workloads=()
    for word in "${words[@]}"; do case $word in c1 | c1v | c2) workloads+=("$word") ;; esac; done
    lines=build/bench/device/passes.log began=$SECONDS
    mkdir -p build/bench/device
    set +e  # in a list with && or ||, the subshell would not stop at its first fault
    (
      set -e
      build/release/bin/bench_passes "device=$name" bfloat16 "${words[@]}"
      if [[ $name == cuda* && -f build/release/lib/mortise/libmortise_cudnn.so ]]; then
        say "the same with attention by cuDNN"
        build/release/bin/bench_passes "device=$name" bfloat16 cudnn "${words[@]}"
      fi
      build/release/bin/bench_decode --device "$name" --repeats 3 "${workloads[@]}"
      build/release/bin/bench_decode --device "$name" --repeats 3 --rounded "${workloads[@]}"
    ) | tee "$lines"
    status=$?
    set -e
    exec "$system_python" apps/dev/device_report.py lines passes --device "$name" --log "$lines" --wall-s $((SECONDS - began)) \
      --status "$status" --out build/bench/device/device-passes.json --measured docs/measured
    ;;
  tokenizer)
    need_apt test
    install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
    say "building"
    build release bench_tokenizer >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    exec "$oracles_dir/bin/python" apps/bench/peers/tokenizer_peer.py --program build/release/bin/bench_tokenizer --out build/bench/tokenizer "$@" \
      tests/golden/text/tokenizers/{llama3,gemma_replace,llama2_prepend}
    ;;
  rewards | scan | languages)
    say "building"
    build release "bench_$what" >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    exec "build/release/bin/bench_$what" "$@"
    ;;
  busy)
    say "building"
    build release mortise make_task packs >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    exec "$system_python" apps/bench/busy.py --bin build/release/bin --out build/bench/busy "$@"
    ;;
  ranks | async | memory)
    need_apt test
    install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
    say "building"
    build release mortise packs bench_packs >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    script=$what
    if [[ $what == ranks && ${1:-} == --trl ]]; then script=ranks_trl && shift; fi
    exec "$oracles_dir/bin/python" "apps/bench/$script.py" --program build/release/bin/mortise \
      --packs build/release/lib/mortise/bench_packs --out "build/bench/$what" "$@"
    ;;
  scale)
    if [[ ${1:-} == --async ]]; then exec "$system_python" apps/bench/scale_async.py "${@:2}"; fi
    if [[ ${1:-} != --check ]]; then exec "$system_python" apps/bench/scale.py "$@"; fi
    need_apt test
    install_oracles || die $exit_download "the oracles could not be installed (see $(log_file oracles))"
    say "building"
    build release mortise packs bench_packs >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    exec "$oracles_dir/bin/python" apps/bench/scale.py --program build/release/bin/mortise \
      --packs build/release/lib/mortise/bench_packs --out build/bench/ranks "$@"
    ;;
  -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0" ;;
  *) die $exit_usage "there is no benchmark '$what'; ./dev bench --help lists them" ;;
esac
