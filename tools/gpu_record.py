#!/usr/bin/env python3
"""Writes tests/gpu/verified.json: which GPU tests passed, where, when, and on which state of the tree."""

import argparse
import datetime
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIGESTED = ("kernel_templates", "runtime")


def tree_digest(folder):
    """SHA-256 over every file below the folder in path order: its path, a zero byte, its length (8 bytes, little
    endian), its bytes."""
    digest = hashlib.sha256()
    paths = [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    for path in sorted(paths, key=lambda p: p.relative_to(ROOT).as_posix().encode()):
        data = path.read_bytes()
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def digests():
    return {folder: tree_digest(folder) for folder in DIGESTED}


def read_junit(path):
    """ctest's record: a test that asked to be skipped, or had no device, is no pass."""
    tests = []
    for case in xml.parse(path).getroot().iter("testcase"):
        status = case.get("status", "run")
        failed = case.find("failure") is not None or status == "fail"
        skipped = case.find("skipped") is not None or status in ("notrun", "disabled")
        outcome = "failed" if failed else "skipped" if skipped else "passed"
        tests.append({"name": case.get("name"), "outcome": outcome, "seconds": round(float(case.get("time", 0)), 3)})
    return sorted(tests, key=lambda test: test["name"])


def read_sanitizer(exit_code, log, tests_log):
    text = pathlib.Path(log).read_text(errors="replace") if pathlib.Path(log).exists() else ""
    tests = pathlib.Path(tests_log).read_text(errors="replace") if pathlib.Path(tests_log).exists() else ""
    summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY:.*)", text)
    counts = re.findall(r"(\d+) test cases?|All tests passed \(.* in (\d+) test cases?\)|test cases:\s*(\d+)", tests)
    ran = [int(number) for groups in counts for number in groups if number]
    return {"passed": int(exit_code) == 0 and bool(ran), "summary": summary[-1] if summary else "no summary",
            "test_cases": max(ran, default=0)}


def device_record(turbotune):
    listing = json.loads(subprocess.run([turbotune, "devices", "--json"], check=True, capture_output=True).stdout)
    first = listing["devices"][0]
    if first["kind"] != "cuda":
        raise SystemExit("gpu_record: no GPU on this machine: " + listing["no_cuda"])
    smi = shutil.which("nvidia-smi")   # knows the full number; the driver itself tells only the CUDA version it serves
    query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    versions = subprocess.run(query, capture_output=True, text=True).stdout.split() if smi else []
    return first, versions[0] if versions else first["driver"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digests", action="store_true", help="print the tree's digests as JSON and stop")
    parser.add_argument("--junit", help="ctest's --output-junit file")
    parser.add_argument("--turbotune", help="the program that names the device")
    parser.add_argument("--sanitizer", nargs=4, action="append", default=[], metavar=("TOOL", "EXIT", "LOG", "TESTS"))
    parser.add_argument("--output", help="the record to write")
    options = parser.parse_args()
    if options.digests:
        print(json.dumps(digests(), indent=2))
        return
    if not (options.junit and options.turbotune and options.output):
        parser.error("--junit, --turbotune and --output go together")
    device, driver = device_record(options.turbotune)
    tests = read_junit(options.junit)
    count = lambda outcome: sum(test["outcome"] == outcome for test in tests)
    record = {
        "device": device["name"],
        "device_class": device["class"],
        "driver": driver,
        "nvrtc": device["compiler"],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "digests": digests(),
        "passed": count("passed"),
        "failed": count("failed"),
        "skipped": count("skipped"),
        "sanitizer": {tool: read_sanitizer(code, log, run) for tool, code, log, run in options.sanitizer},
        "tests": tests,
    }
    pathlib.Path(options.output).write_text(json.dumps(record, indent=2) + "\n")
    print(f"{options.output}: {record['passed']} passed, {record['failed']} failed, {record['skipped']} skipped on {record['device']}")


if __name__ == "__main__":
    main()
