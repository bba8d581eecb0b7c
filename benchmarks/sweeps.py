#!/usr/bin/env python3
"""How fast a sweep is and how far two of them agree: on all GPUs of this machine together, on one of them, and once more.

  sweeps.py --turbotune build/release/turbotune --output benchmarks/results/sweeps.json
  sweeps.py --preset quick --sweeps one,again,twice

Each sweep starts with a cold store and without a profile, but `again`, which repeats `one` and must measure nothing, and
`twice`, which has the store of `one` but not its profile. `winners` compares the profile of `one` with that of `all` or of
`twice`: where they name different configs, `ratio` says how far the latencies lie apart. Times are wall time of the whole
command.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time

SWEEPS = {"all": ["--devices", "all"], "one": ["--device", "0"], "again": ["--device", "0"], "twice": ["--device", "0"]}


def sweep(options, name, directory):
    own = os.path.join(directory, "one" if name == "again" else name)
    store = os.path.join(directory, "all" if name == "all" else "one", "store")
    environment = dict(os.environ, TURBOTUNE_CACHE_DIR=store,
                       TURBOTUNE_PROFILE_DIR=os.path.join(own, "profiles"),
                       TURBOTUNE_SHIPPED_PROFILES=os.path.join(own, "none"))
    os.makedirs(own, exist_ok=True)
    begin = time.monotonic()
    command = [options.turbotune, "--preset", options.preset, *SWEEPS[name], "--json"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    seconds = time.monotonic() - begin
    report = json.loads(done.stdout)
    kept = ("devices", "workloads", "measured", "resumed", "skipped", "failed", "candidates_measured",
            "candidates_rejected", "worker_restarts", "failures", "stages")
    print(f"{name}: {seconds:.1f} s, {report['measured']} measured, {report['failed']} failed", file=sys.stderr)
    return report["profile"], dict(command=" ".join(command[1:]), exit_code=done.returncode, seconds=round(seconds, 2),
                                   **{key: report[key] for key in kept})


def winners(options, one, other):
    done = subprocess.run([options.turbotune, "inspect", one, "--compare", other, "--json"], stdout=subprocess.PIPE,
                          text=True)
    if done.returncode:
        raise SystemExit(f"sweeps: inspect ended with {done.returncode}")
    rows = json.loads(done.stdout)["comparison"]
    differ = [dict(workload=row["workload"], ratio=row["ratio"]) for row in rows if not row["same_config"]]
    return dict(workloads=len(rows), same=len(rows) - len(differ), differ=differ)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turbotune", default="build/release/turbotune")
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--sweeps", default="all,one,again", help="which, in this order, of all, one, again, twice")
    parser.add_argument("--directory", help="where stores and profiles go (default: a temporary one)")
    parser.add_argument("--output", help="JSON file (default: standard output)")
    options = parser.parse_args()
    names = options.sweeps.split(",")
    unknown = [name for name in names if name not in SWEEPS]
    if unknown:
        parser.error(f"unknown sweep {unknown[0]}; known: {', '.join(SWEEPS)}")
    if any(name in names and "one" not in names[:names.index(name)] for name in ("again", "twice")):
        parser.error("--sweeps: again and twice come after one, whose store they use")
    with tempfile.TemporaryDirectory() as temporary:
        directory = os.path.abspath(options.directory or temporary)
        devices = json.loads(subprocess.run([options.turbotune, "devices", "--json"], stdout=subprocess.PIPE,
                                            check=True).stdout)
        known = ("id", "name", "class", "driver", "compiler", "memory_bytes")
        result = dict(devices=[{key: d[key] for key in known} for d in devices["devices"] if d["kind"] == "cuda"],
                      date=str(datetime.date.today()), command=" ".join(sys.argv), preset=options.preset, sweeps={})
        profiles = {}
        for name in names:
            profiles[name], result["sweeps"][name] = sweep(options, name, directory)
        if "all" in profiles and "one" in profiles:
            result["speedup"] = round(result["sweeps"]["one"]["seconds"] / result["sweeps"]["all"]["seconds"], 3)
        result["winners"] = {name: winners(options, profiles[name], profiles["one"])
                             for name in ("all", "twice") if name in profiles and "one" in profiles}
        text = json.dumps(result, indent=1) + "\n"
        if options.output:
            with open(options.output, "w") as file:
                file.write(text)
        else:
            print(text, end="")
    return int(any(s["exit_code"] for s in result["sweeps"].values()))


if __name__ == "__main__":
    sys.exit(main())
