#!/usr/bin/env python3
"""Disentangled attention beside its peers on one GPU, on the same inputs, in one run.

  peers.py --library build/release/libturbotune.so --output benchmarks/results/disentangled_attention.json
  peers.py --lengths 512,2048 --implementations turbotune,cudnn_plain --passes forward
  peers.py --errors-only

Needs PyTorch, and the peers that are to be compared: disentangled-flash, flashdeberta, transformers; one that is missing is
named and left out. peer_calls.py says what is called of each.

Every shape runs in a process of its own; implementations share its tensors. Before each execution the L2 is overwritten
and the GPU is kept busy for as long as the host needs to enqueue the work, so that `median_ms`, `min_ms` and `p90_ms` are
device time; `host_ms` is what enqueueing costs. `peak_bytes` is the device memory beyond the inputs (backward: of forward
and backward together). `errors` holds root mean squares of the difference to float64, and of the float64 values.
"""
import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ["turbotune", "disentangled_flash", "flashdeberta", "hugging_face", "cudnn_plain"]
TENSORS = ["out", "dq", "dk", "dv", "d_position_key", "d_position_query"]


# ---- In the process of one shape ----

class Clock:
    """Times one call at a time, with a cold L2."""

    def __init__(self, device):
        import torch
        self.torch, self.gpu = torch, device.type == "cuda"
        if self.gpu:
            self.l2 = torch.empty(256 << 20, dtype=torch.uint8, device=device)
            self.cycles_per_ms = torch.cuda.get_device_properties(device).clock_rate   # kHz
            self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def synchronize(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def host_ms(self, call):
        self.synchronize()
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3

    def once(self, call, host_ms):
        if not self.gpu:
            return self.host_ms(call)
        self.l2.zero_()
        self.torch.cuda._sleep(int(self.cycles_per_ms * (2 * host_ms + 0.05)))
        self.start.record()
        call()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop)

    def warm_up(self, call):
        """Returns what enqueueing the call costs, in ms."""
        for _ in range(3):   # compiles, picks configs, grows the allocator's pool
            call()
        return statistics.median(self.host_ms(call) for _ in range(5))

    def measure(self, call, seconds):
        host_ms = self.warm_up(call)
        begin, samples = time.perf_counter(), []
        while len(samples) < 10 or (len(samples) < 200 and time.perf_counter() - begin < seconds):
            samples.append(self.once(call, host_ms))
        return summary(samples) | {"samples": len(samples), "host_ms": host_ms}


def summary(samples):
    samples = sorted(samples)
    return {"median_ms": statistics.median(samples), "min_ms": samples[0], "p90_ms": samples[int(0.9 * (len(samples) - 1))]}


def peak_of(device, action):
    import torch
    if device.type != "cuda":
        action()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def time_pass(peer_class, point, which, options, clock, seconds):
    best = None
    for tuning in options["tunings"] if peer_class.name == "disentangled_flash" else [None]:
        peer = peer_class(point, {**options, "tuning": tuning})

        def both():
            peer.train()
            peer.backward()

        if which == "forward":
            peer.forward()   # compiling takes memory of its own
            peak = peak_of(point.device, peer_class(point, {**options, "tuning": tuning}).forward)
            result = clock.measure(peer.forward, seconds)
        else:
            both()
            fresh = peer_class(point, {**options, "tuning": tuning})
            peak = peak_of(point.device, lambda: (fresh.train(), fresh.backward()))
            del fresh
            result = clock.measure(peer.backward, seconds)
        result = {**result, "peak_bytes": peak, **peer.about}
        if best is None or result["median_ms"] < best["median_ms"]:
            best = result
    return best


def root_mean_square(x):
    return x.double().square().mean().sqrt().item()


def errors_of(peer_class, point, options, want):
    peer = peer_class(point, {**options, "tuning": options["tunings"][0]})
    found = {"out": peer.train()}
    try:
        found.update(zip(TENSORS[1:], peer.full_gradients(peer.backward())))
    except Exception as error:   # the output counts where there is no backward
        found["failure"] = sentence(error)
    return {name: value if name == "failure" else
            {"rmse": root_mean_square(value - want[name]), "reference": root_mean_square(want[name])}
            for name, value in found.items()}


def sentence(error):
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]


def child(spec):
    import torch
    sys.path.insert(0, HERE)
    import peer_calls
    for name in spec["implementations"]:
        try:
            {"disentangled_flash": lambda: __import__("disentangled_flash"),
             "flashdeberta": lambda: __import__("flashdeberta.ops.flash_attention"),
             "hugging_face": lambda: __import__("transformers")}.get(name, lambda: None)()
        except ImportError:
            pass
    if not sys.stdin.readline():   # a line: the GPU is ours from here on; none: nobody waits any more
        return
    device = torch.device(spec["device"])
    point = peer_calls.Point(spec["shape"], getattr(torch, spec["dtype"]), spec["masked"], device)
    clock = Clock(device)
    want = None
    for name, which in spec["work"]:
        print("START", json.dumps([name, which]), flush=True)
        peer_class = peer_calls.PEERS[name]
        try:
            if which == "errors":
                if want is None:
                    out, gradients = peer_calls.reference(point)
                    want = dict(zip(TENSORS, [out, *gradients]))
                result = errors_of(peer_class, point, spec["options"], want)
            else:
                result = time_pass(peer_class, point, which, spec["options"], clock, spec["seconds"])
        except Exception as error:
            result = {"failure": sentence(error)}
        print("RESULT", json.dumps([name, which, result]), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()


# ---- In the process that collects ----

class Worker:
    def __init__(self, spec):
        self.spec = spec
        self.messages = tempfile.TemporaryFile("w+")   # a pipe that nobody reads would stop it
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--child", json.dumps(spec)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.messages, text=True)

    def results(self):
        """(name, pass, result) of all the work; what was running when the process died failed."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        running, left = None, [tuple(each) for each in self.spec["work"]]
        for line in self.process.stdout:
            word, _, rest = line.partition(" ")
            if word == "START":
                running = tuple(json.loads(rest))
            elif word == "RESULT":
                name, which, result = json.loads(rest)
                left.remove((name, which))
                running = None
                yield name, which, result
        code = self.process.wait()
        self.messages.seek(0)
        errors = self.messages.read().strip().splitlines()
        if code == 0:
            return
        why = f"the process ended with {code}: {errors[-1] if errors else ''}"[:300]
        if running is None:
            for name, which in left:
                yield name, which, {"failure": why}
            return
        yield *running, {"failure": why}
        left.remove(running)
        if left:
            yield from Worker({**self.spec, "work": left}).results()


def work_list(arguments):
    """One specification for each shape, element type and mask."""
    common = {"device": arguments.device, "seconds": arguments.seconds, "implementations": arguments.implementations,
              "options": {"library": arguments.library, "profile": arguments.profile, "policy": arguments.policy,
                          "config": arguments.config, "tunings": arguments.disentangled_flash_tuning}}
    sizes = {"heads": arguments.heads, "head_dim": arguments.head_dim}
    specs = []
    if not arguments.errors_only:
        for length, dtype, masked in itertools.product(arguments.lengths, arguments.dtypes, arguments.masks):
            shape = {"batch": max(1, arguments.tokens // length), "length": length, **sizes}
            work = [(name, which) for name in arguments.implementations for which in arguments.passes]
            specs.append({**common, "shape": shape, "dtype": dtype, "masked": masked, "work": work})
    if not arguments.no_errors:
        for length, dtype in itertools.product(arguments.error_lengths, arguments.error_dtypes):
            shape = {"batch": 2, "length": length, **sizes}
            work = [(name, "errors") for name in arguments.implementations if name != "cudnn_plain"]
            specs.append({**common, "shape": shape, "dtype": dtype, "masked": False, "work": work})
    return specs


def versions(arguments):
    sys.path.insert(0, HERE)
    os.environ.setdefault("TURBOTUNE_LIBRARY", arguments.library)
    import torch
    import peer_calls
    found, missing = {"python": platform.python_version(), "torch": torch.__version__}, {}
    for name in arguments.implementations:
        try:
            found[name] = peer_calls.PEERS[name].version()
        except Exception as error:
            missing[name] = sentence(error)
    try:
        import triton
        found["triton"] = triton.__version__
    except ImportError:
        pass
    about = {"device": platform.processor() or "cpu"}
    if arguments.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(torch.device(arguments.device))
        about = {"device": properties.name, "multiprocessors": properties.multi_processor_count,
                 "memory_bytes": properties.total_memory}
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    return about, found, missing


def row_key(row):
    return json.dumps([row.get(name) for name in ("implementation", "pass", "dtype", "masked", "shape")], sort_keys=True)


def merged(old, new):
    keys = {row_key(row) for row in new}
    return [row for row in old if row_key(row) not in keys] + new


def print_table(rows):
    names = [name for name in NAMES if any(row["implementation"] == name for row in rows)]
    print(f"{'pass':9}{'dtype':10}{'masked':8}{'B':>4}{'H':>4}{'L':>6}{'D':>5}" + "".join(f"{name:>20}" for name in names))
    groups = {}
    for row in rows:
        shape = row["shape"]
        key = (row["pass"], row["dtype"], row["masked"], shape["length"], shape["batch"], shape["heads"], shape["head_dim"])
        groups.setdefault(key, {})[row["implementation"]] = row
    for (which, dtype, masked, length, batch, heads, head_dim), found in sorted(groups.items()):
        cells = []
        for name in names:
            row = found.get(name)
            cells.append("" if row is None else "failed" if "failure" in row else f"{row['median_ms']:.4f}")
        print(f"{which:9}{dtype:10}{str(masked):8}{batch:4}{heads:4}{length:6}{head_dim:5}" +
              "".join(f"{cell:>20}" for cell in cells))
    for row in rows:
        if "failure" in row:
            print(f"failed: {row['implementation']} {row['pass']} {row['dtype']} L={row['shape']['length']}"
                  f"{' masked' if row['masked'] else ''}: {row['failure']}")


def print_errors(errors):
    for row in errors:
        head = f"errors {row['implementation']:20}{row['dtype']:10}L={row['shape']['length']:<6}"
        print(head + " ".join(f"{name} {row[name]['rmse']:.2e}" for name in TENSORS if name in row) +
              (f" failed: {row['failure']}" if "failure" in row else ""))


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def items(kind):
        return lambda text: [kind(part) for part in text.split(",") if part]

    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--library", default=os.path.join(HERE, "../build/release/libturbotune.so"))
    parser.add_argument("--output", help="JSON file to write; rewritten after every shape")
    parser.add_argument("--merge", action="store_true", help="keep the rows of --output that are not measured now")
    parser.add_argument("--lengths", type=items(int), default=[128, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--tokens", type=int, default=16384, help="batch is tokens / length")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtypes", type=items(str), default=["bfloat16"], help="bfloat16, float16, float32")
    parser.add_argument("--masks", type=items(lambda text: text == "on"), default=[False], help="off, on or off,on")
    parser.add_argument("--passes", type=items(str), default=["forward", "backward"])
    parser.add_argument("--implementations", type=items(str), default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--disentangled-flash-tuning", type=items(str), default=["auto"],
                        help="auto, heuristic, autotune; of several the fastest counts")
    parser.add_argument("--profile", help="of turbotune")
    parser.add_argument("--policy", help="of turbotune")
    parser.add_argument("--config", help="of turbotune, as it prints it")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each implementation and pass")
    parser.add_argument("--error-lengths", type=items(int), default=[512, 2048])
    parser.add_argument("--error-dtypes", type=items(str), default=["bfloat16", "float16"])
    parser.add_argument("--no-errors", action="store_true")
    parser.add_argument("--errors-only", action="store_true")
    parser.add_argument("--ahead", type=int, default=1, help="processes that may import modules beside the one that measures")
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args(argv)
    for name in arguments.implementations:
        if name not in NAMES:
            parser.error(f"--implementations: {name} is none of {', '.join(NAMES)}")
    for which in arguments.passes:
        if which not in ("forward", "backward"):
            parser.error(f"--passes: {which} is neither forward nor backward")
    return arguments


def main(argv):
    arguments = parse(argv)
    if arguments.child:
        child(json.loads(arguments.child))
        return 0
    about, found, missing = versions(arguments)
    import capi
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    arguments.implementations = [name for name in arguments.implementations if name not in missing]
    report = {**about, "versions": found, "left_out": missing,
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
              "command": "peers.py " + capi.portable(argv), "rows": [], "errors": []}
    old = {"rows": [], "errors": []}
    if arguments.merge and arguments.output and os.path.exists(arguments.output):
        with open(arguments.output) as file:
            old = json.load(file)
        report["earlier"] = old.get("earlier", []) + [{name: old[name] for name in ("date", "command", "versions")}]
    specs = work_list(arguments)
    workers = []   # imports take seconds and no GPU: they run while others measure
    for index, spec in enumerate(specs):
        while len(workers) < len(specs) and len(workers) <= index + arguments.ahead:
            workers.append(Worker(specs[len(workers)]))
        for name, which, result in workers[index].results():
            row = {"implementation": name, "pass": which, "dtype": spec["dtype"], "masked": spec["masked"],
                   "shape": spec["shape"], **result}
            if which == "errors":
                del row["pass"]
            report["errors" if which == "errors" else "rows"].append(row)
            outcome = result.get("failure") or (f"{result['median_ms']:.4f} ms" if "median_ms" in result else "done")
            print(f"  {name} {which} {spec['dtype']} L={spec['shape']['length']}{' masked' if spec['masked'] else ''}: "
                  f"{outcome}", flush=True)
        if arguments.output:
            whole = {**report, "rows": merged(old["rows"], report["rows"]), "errors": merged(old["errors"], report["errors"])}
            with open(arguments.output + ".new", "w") as file:
                json.dump(whole, file, indent=1)
                file.write("\n")
            os.replace(arguments.output + ".new", arguments.output)
    print_table(report["rows"])
    print_errors(report["errors"])
    return 1 if any("failure" in row for row in report["rows"] + report["errors"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
