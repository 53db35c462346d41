"""The ratios and intervals of scripts/figures, its rounds, its files and its comparators' protocol."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "figures.d"))

import figure  # noqa: E402
import figure_ucx  # noqa: E402
import ours  # noqa: E402
import paired  # noqa: E402
import plot  # noqa: E402
import record  # noqa: E402
import rounds  # noqa: E402
import table  # noqa: E402
import theirs  # noqa: E402


def by(m):
    return m["b_us"] / m["a_us"]


def drawn(draw, ratio, spread, states):
    """One round per state of the machine, which slows both sides."""
    return [
        {
            "a_us": [state * draw.lognormvariate(0, spread) for _ in range(30)],
            "b_us": [ratio * state * draw.lognormvariate(0, spread) for _ in range(30)],
        }
        for state in states
    ]


class Paired(unittest.TestCase):
    def test_constant_samples(self):
        self.assertEqual(paired.estimate([{"a_us": [2, 2], "b_us": [5, 5]}] * 3, by), (2.5, 2.5, 2.5))

    def test_state_of_the_machine_cancels(self):
        estimated = paired.estimate(drawn(random.Random(3), 2, 0.02, [1, 4, 1.5, 9, 2]), by)
        self.assertAlmostEqual(estimated[0], 2, delta=0.05)
        self.assertLess(estimated[2] - estimated[1], 0.1)

    def test_outlying_samples_do_not_move_it(self):
        given = drawn(random.Random(4), 2, 0.01, [1] * 5)
        for r in given:
            r["b_us"][::10] = [1000] * 3
        self.assertAlmostEqual(paired.estimate(given, by)[0], 2, delta=0.05)

    def test_interval_covers(self):
        """At least 80 of 100 intervals hold the truth when rounds differ by 3 % beyond their samples' spread."""
        draw, held = random.Random(5), 0
        for i in range(100):
            given = []
            for _ in range(6):
                given += drawn(draw, 2 * draw.lognormvariate(0, 0.03), 0.02, [1])
            _, lo, hi = paired.estimate(given, by, seed=i, resamples=200)
            held += lo <= 2 <= hi
        self.assertGreaterEqual(held, 80)

    def test_same_seed_same_interval(self):
        given = drawn(random.Random(6), 2, 0.1, [1, 2, 1])
        self.assertEqual(paired.estimate(given, by), paired.estimate(given, by))

    def test_no_samples(self):
        self.assertRaises(ValueError, paired.estimate, [], by)
        self.assertRaises(ValueError, paired.estimate, [{"a_us": [1], "b_us": []}], by)

    def test_verdict(self):
        self.assertEqual(paired.verdict((2.2, 2.0, 2.4), 2.0), "met")
        self.assertEqual(paired.verdict((2.2, 1.9, 2.4), 2.0), "open")
        self.assertEqual(paired.verdict((1.8, 1.7, 1.9), 2.0), "missed")
        self.assertEqual(paired.verdict((1.8, 1.7, 1.9), None), "")

    def test_quantiles(self):
        self.assertEqual([paired.at([1, 2, 3, 5], share) for share in (0, 0.5, 1)], [1, 2.5, 5])


class Rounds(unittest.TestCase):
    def test_sides_alternate(self):
        calls = []

        def side(name, us):
            def take(n):
                calls.append((name, n))
                return {name + "_us": [us] * n, name + "_GBps": [1.0]}

            return take

        out = rounds.alternate({"a": side("a", 10000), "b": side("b", 100)}, 4, 0.5)
        self.assertEqual(calls[:2], [("a", rounds.FEWEST), ("b", rounds.FEWEST)])
        self.assertEqual("".join(name for name, _ in calls[2:]), "abbaabba")
        self.assertEqual({n for name, n in calls[2:] if name == "a"}, {50})
        self.assertEqual({n for name, n in calls[2:] if name == "b"}, {rounds.MOST})
        self.assertEqual([r["order"] for r in out], [["a", "b"], ["b", "a"]] * 2)
        self.assertEqual(len(out[0]["samples"]["a_us"]), 50)

    def test_slow_sides_take_the_fewest(self):
        self.assertEqual(rounds.iterations({"a_us": [2e6]}, 0.5, rounds.FEWEST), rounds.FEWEST)


def document():
    taken = [{"order": ["x", "y"], "samples": {"a_us": [1.0, 1.1], "b_us": [3.0, 3.3], "other_us": [7.0]}}] * 3
    row = figure.Row("S=1", taken, threads=1, ranks=2)
    row.command = ["sptune", "bench"]
    row.keep("a", "b")
    row.add("b / a", by, 2.0)
    return {
        "schema": record.SCHEMA, "name": "n", "about": "a", "command": "c", "sptune": "v", "peer": {}, "cannot": [],
        "machine": {"cpu": "x", "cpus": 2}, "disturbed": False, "rows": [row.document()],
    }  # fmt: skip


class Files(unittest.TestCase):
    def test_a_command_names_no_machine(self):
        script = os.path.join(figure.REPOSITORY, "scripts", "peers", "attention_torch.py")
        words = ["/opt/some/venv/bin/python3", script, "--threads", 4, "/tmp/built/alltoall_mpi"]
        self.assertEqual(figure.told(words), "python3 scripts/peers/attention_torch.py --threads 4 alltoall_mpi")
        row = figure.Row("S=1", [{"order": ["a"], "samples": {"a_us": [1.0]}}], threads=1, ranks=2)
        row.peer_command = words
        self.assertEqual(row.document()["peer_command"], figure.told(words))

    def test_a_label_of_some_rounds_only(self):
        taken = [{"order": ["x"], "samples": {"a_us": [1.0], "a_GBps": [2.0]}}, {"order": ["x"], "samples": {"a_us": [3.0]}}]
        row = figure.Row("S=1", taken, threads=1, ranks=2)
        row.keep("a")
        self.assertEqual(row.document()["medians"], {"a_us": 2.0})

    def test_written_and_read(self):
        with tempfile.TemporaryDirectory(prefix="sptune-test-") as folder:
            path = os.path.join(folder, "deeper", "n.json")
            record.write(path, document())
            got = record.load(path)
        self.assertEqual(got["rows"][0]["rounds"][0]["samples"], {"a_us": [1.0, 1.1], "b_us": [3.0, 3.3]})
        ratio = got["rows"][0]["ratios"][0]
        self.assertAlmostEqual(ratio["value"], 3.0)
        self.assertEqual(ratio["verdict"], "met")
        self.assertIn("b / a", record.row_lines(got["rows"][0]))
        self.assertIn(" met", record.row_lines(got["rows"][0]))
        self.assertNotIn(" met", record.row_lines(got["rows"][0], quick=True))
        self.assertEqual(record.markdown(got), "| `n` | b / a (>= 2) |\n|---|---|\n| S=1 | 3.00 [2.86..3.15] met |")

    def test_a_target_of_some_lines(self):
        def row(name, **targets):
            ratios = [{"name": n, "value": 1.0, "ci95": [1.0, 1.0], "target": t, "verdict": t and "met"} for n, t in targets.items()]
            return {"name": name, "ratios": ratios}

        got = {"name": "n", "rows": [row("a", x=0.5, y=None), row("b", x=0.75)]}
        lines = record.markdown(got).splitlines()
        self.assertEqual(lines[0], "| `n` | x | y |")
        self.assertEqual(lines[2:], ["| a | 1.00 [1.00..1.00] met >= 0.5 | 1.00 [1.00..1.00] |", "| b | 1.00 [1.00..1.00] met >= 0.75 |  |"])

    def test_foreign_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="sptune-test-") as file:
            json.dump({"schema": "sptune.samples/1"}, file)
            file.flush()
            self.assertRaises(SystemExit, record.load, file.name)

    def test_a_number_that_is_missing(self):
        row = {"key": {"subject": "attention"}, "ceiling_tflops": None, "flops": 2.0}
        self.assertEqual(figure.of_row(row, "flops"), 2.0)
        self.assertRaisesRegex(ours.Unmeasured, "without ceiling_tflops", figure.of_row, row, "ceiling_tflops")

    def test_digits(self):
        self.assertEqual(record.digits(2.31, 2.2, 2.4), 2)
        self.assertEqual(record.digits(2.31, 1.2, 3.4), 1)


def exchange_document(buffers, sizes, labels):
    """As figure_exchange makes it, of times in proportion to the bytes."""
    out = document()
    out["rows"] = [
        {
            "name": f"S={size}", "ranks": 4, "threads": 1, "buffers": buffers, "bytes": size, "exchange": "direct", "ratios": [],
            "medians": {label: size / rate / 1e3 if label.endswith("_us") else rate for label, rate in labels.items()},
            "rounds": [],
        }
        for size in sizes
    ]  # fmt: skip
    return out


class Picture(unittest.TestCase):
    LABELS = {"direct_us": 8, "packed_us": 4, "packed-separate_us": 2, "direct_ceiling_GBps": 10}

    def test_rates(self):
        given = exchange_document("hot", [1 << 20, 1 << 18], self.LABELS)
        given["rows"] += exchange_document("cold", [1 << 19], self.LABELS)["rows"]
        self.assertEqual([size for size, _ in plot.rates(given, "direct")], [1 << 18, 1 << 20])
        for label, rate in (("direct", 8), ("packed", 4), ("packed-separate", 2)):
            self.assertAlmostEqual(plot.rates(given, label)[0][1], rate)
        self.assertEqual(plot.ceilings(given), [(1 << 18, 10), (1 << 20, 10)])
        self.assertEqual(plot.rates(given, "separate"), [])

    def test_a_comparator_keeps_its_ratio(self):
        first = exchange_document("hot", [1 << 18, 1 << 20], self.LABELS)
        slower = exchange_document("hot", [1 << 20, 1 << 22], {"direct_us": 4, "separate_us": 1})  # on a worse day
        self.assertEqual(plot.beside(first, slower, "separate"), [(1 << 20, 2.0)])

    def test_drawn(self):
        if shutil.which("gnuplot") is None:
            self.skipTest("no gnuplot")
        with tempfile.TemporaryDirectory(prefix="sptune-test-") as folder:
            record.write(os.path.join(folder, "exchange.json"), exchange_document("hot", [1 << 18, 1 << 20], self.LABELS))
            record.write(os.path.join(folder, "mpi.json"), exchange_document("hot", [1 << 18, 1 << 20], {"direct_us": 8, "separate_us": 1}))
            plot.draw(folder, os.path.join(folder, "out.svg"))
            with open(os.path.join(folder, "out.svg")) as file:
                drawn = file.read()
        for words in ("direct", "packed", "Open MPI, pack and unpack", "peer copy", "4 ranks"):
            self.assertIn(words, drawn)

    def test_nothing_to_draw(self):
        with tempfile.TemporaryDirectory(prefix="sptune-test-") as folder:
            self.assertRaises(SystemExit, plot.draw, folder, os.path.join(folder, "out.svg"))


PEER = """
import sys
print("a launcher's line", flush=True)
print('{"ready": true, "library": "l"}', flush=True)
for line in sys.stdin:
    if line == "run 0\\n":
        sys.exit("no")
    print('{"times_us": [1.5, %d]}' % len(line.split()), flush=True)
"""


class Peers(unittest.TestCase):
    def test_commands_and_answers(self):
        peer = theirs.Peer([sys.executable, "-c", PEER])
        self.assertEqual(peer.about["library"], "l")
        self.assertEqual(peer.run(10, "form", 64), [1.5, 4])
        self.assertEqual(peer.run(3), [1.5, 2])
        peer.close()
        self.assertEqual(peer.process.returncode, 0)

    def test_one_that_ends_says_why(self):
        peer = theirs.Peer([sys.executable, "-c", PEER])
        with self.assertRaisesRegex(ours.Unmeasured, "ended with 1: no"):
            peer.run(0)
        with self.assertRaisesRegex(ours.Unmeasured, "No such file"):
            theirs.Peer(["/nowhere/comparator"])


class StandinOurs:
    """Rows whose times are 100 us, 200 for packed, 400 for packed-separate, less with threads; sequences longer than 10k are waived."""

    folder = "/nowhere"

    def needs_exchange(self, name):
        pass

    def command(self, subject, **options):
        return ["sptune", "bench", subject, *options]

    def train_command(self, **options):
        return ["sptune", "train", *options]

    def steps(self, samples, **options):
        return [{"1": 90.0, "2": 100.0}[str(options["sp"])]] * samples

    def rows(self, samples, subject, **options):
        if options.get("seq", 0) > 10000:
            raise ours.Unmeasured("too long")
        out = []
        for name in str(options.get("exchange", "")).split(","):
            us = {"packed": 200.0, "packed-separate": 400.0}.get(name, 100.0) / options["threads"]
            out.append(
                {
                    "key": {"subject": subject, "exchange": name}, "times_us": [us] * samples, "bytes": 1 << 20, "flops": 8e6,
                    "ceiling_GBps": 20.0, "ceiling_tflops": 0.1 * options["threads"], "transport": "ucx posix shm",
                    "conditions": {"pack_us": 50.0},
                }
            )  # fmt: skip
        return out


class StandinPeer:
    """Every iteration takes 300 us."""

    words = ["comparator"]
    about = {"library": "l"}

    def ask(self, n, *words):
        return {"times_us": [300.0] * n, "bytes": 1 << 20}

    def run(self, n, *words):
        return self.ask(n)["times_us"]

    def close(self):
        self.closed = True


class StandinContext:
    ours, quick, rounds, seconds, ranks, exchange, peers = StandinOurs(), False, 2, 0.001, 4, "direct", "peers"
    machine = {"cpus": 8}

    def peer_about(self, about):
        self.about = about

    def python_with_torch(self):
        return "python3"


class Figures(unittest.TestCase):
    """Each figure's ratios from times that are known."""

    def made(self, name):
        peer = StandinPeer()
        found = {"ratios": {}, "waived": 0, "rows": 0}
        module = table.FIGURES[name]
        with contextlib.ExitStack() as stack:
            stack.enter_context(unittest.mock.patch.object(paired, "RESAMPLES", 20))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sptune-test-"))
            stack.enter_context(unittest.mock.patch.object(StandinOurs, "folder", folder))
            for known, value in (("Peer", lambda *_: peer), ("start", lambda _: peer), ("tag_bw", lambda *_: 60.0)):
                if hasattr(module, known):
                    stack.enter_context(unittest.mock.patch.object(module, known, value))
            if name == "ucx":
                stack.enter_context(unittest.mock.patch.object(module.shutil, "which", lambda _: "there"))
                stack.enter_context(unittest.mock.patch.object(module.os, "sched_getaffinity", lambda _: {0, 1}))
            for measure in module.run(StandinContext()):
                try:
                    row = measure().document()
                except ours.Unmeasured:
                    found["waived"] += 1
                    continue
                found["rows"] += 1
                for ratio in row["ratios"]:
                    found["ratios"].setdefault(ratio["name"], (round(ratio["value"], 6), set()))[1].add(ratio["target"])
        self.assertTrue(not hasattr(module, "Peer") or peer.closed)
        return found

    def test_attention(self):
        self.assertEqual(self.made("attention")["ratios"], {"share of FMA rate": (0.8, {0.8, 0.75, 0.65})})

    def test_scaling(self):
        found = self.made("scaling")["ratios"]
        self.assertEqual(found["speed-up, 2 threads"], (2.0, {1.7}))
        self.assertEqual(found["speed-up, 8 threads"], (8.0, {None}))
        self.assertEqual(found["of the FMA loop, 8 threads"], (8.0, {None}))

    def test_exchange(self):
        found = self.made("exchange")
        self.assertEqual((found["rows"], found["waived"]), (12, 3))
        self.assertEqual(found["ratios"]["packed / direct"], (2.0, {2.0}))
        self.assertEqual(found["ratios"]["packed-separate / direct"], (4.0, {3.3}))
        self.assertEqual(found["ratios"]["direct, share of peer copy"], (round((1 << 20) / 100 / 1e3 / 20, 6), {0.7}))

    def test_pack(self):
        self.assertEqual(self.made("pack")["ratios"], {"pack rate / memcpy rate": (2.0, {0.8})})

    def test_mpi(self):
        found = self.made("mpi")["ratios"]
        self.assertEqual(found["MPI pack, unpack / direct"], (3.0, {2.0}))
        self.assertEqual(found["MPI needed passes / direct"], (3.0, {None}))

    def test_ucx(self):
        self.assertEqual(self.made("ucx")["ratios"], {"rate of both directions / tag_bw": (1.2, {0.9})})

    def test_torch(self):
        self.assertEqual(self.made("torch")["ratios"], {"torch / sptune": (24.0, {1.15, 1.2})})

    def test_gloo(self):
        found = self.made("gloo")
        self.assertEqual((found["rows"], found["ratios"]), (12, {"gloo / sptune": (6.0, {2.0, None})}))

    def test_train(self):
        self.assertEqual(self.made("train")["ratios"], {"one process / sp 2": (0.9, {0.9})})

    def test_all_are_tested(self):
        self.assertEqual({"test_" + name for name in table.FIGURES} - set(dir(self)), set())


STANDIN = """#!/bin/sh
case "$*" in
  *train*--ranks\ 3*) echo "no such thing" >&2; exit 2 ;;
  *train*) echo '{"version": "0.1.0", "steps": [{"step_us": 9.0}, {"step_us": 2.0}, {"step_us": 3.0}]}' ;;
  *list*) echo "packed  q, k and v together" ;;
  *) echo '{"version": "0.1.0", "samples": [{"outcome": "waived", "rule": "tainted", "why": "not quiet", "times_us": [1.0],
       "key": {"exchange": "packed"}, "versions": {"sptune": "abc"}}]}'; exit 3 ;;
esac
"""


class Perftest(unittest.TestCase):
    TEXT = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw\n 100,0.281,26.5,26.625,2349.59,2349.59\n"

    def test_its_csv(self):
        self.assertEqual(figure_ucx.read(self.TEXT), 26.625)
        self.assertEqual(figure_ucx.read(self.TEXT + " 200,0.2,26,27.5,2,2\n"), 27.5)

    def test_not_its_csv(self):
        for text in ("", "connection refused", self.TEXT.splitlines()[0]):
            self.assertRaises(ours.Unmeasured, figure_ucx.read, text)


class Ours(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sptune-test-")
        self.program = os.path.join(self.folder.name, "sptune")
        with open(self.program, "w") as file:
            file.write(STANDIN)
        os.chmod(self.program, 0o755)

    def tearDown(self):
        self.folder.cleanup()

    def test_a_waived_row_is_no_figure(self):
        sptune = ours.Sptune(self.program)
        with self.assertRaisesRegex(ours.Unmeasured, "waived, rule tainted"):
            sptune.rows(10, "exchange", seq=64)
        sptune.close()

    def test_unless_asked_for(self):
        sptune = ours.Sptune(self.program, disturbed=True)
        (row,) = sptune.rows(10, "exchange", seq=64)
        self.assertEqual((figure.of_key(row, "exchange"), row["times_us"]), ("packed", [1.0]))
        self.assertTrue(sptune.took_disturbed)
        self.assertEqual(sptune.version, "abc")
        sptune.close()

    def test_steps_without_the_first(self):
        sptune = ours.Sptune(self.program)
        self.assertEqual(sptune.steps(2, ranks=2, dp_shard=1), [2.0, 3.0])
        self.assertEqual(sptune.train_command(dp_shard=1), ["sptune", "train", "--dp-shard", "1"])
        with self.assertRaisesRegex(ours.Unmeasured, "exit 2: no such thing"):
            sptune.steps(2, ranks=3)
        sptune.close()

    def test_what_it_has(self):
        sptune = ours.Sptune(self.program)
        sptune.needs_exchange("packed")
        self.assertRaises(ours.Unmeasured, sptune.needs_exchange, "direct")
        sptune.close()

    def test_one_that_does_not_start(self):
        with open(self.program, "w") as file:
            file.write("#!/bin/sh\necho a library is missing >&2\nexit 127\n")
        with self.assertRaisesRegex(SystemExit, "exit 127: a library is missing"):
            ours.Sptune(self.program)
        with self.assertRaisesRegex(SystemExit, "SPTUNE=path"):
            ours.Sptune("/nowhere/sptune")

    def test_the_command(self):
        env = {**os.environ, "SPTUNE": self.program}
        done = subprocess.run(
            [os.path.join(ROOT, "scripts", "figures"), "exchange", "--out", self.folder.name], env=env, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("exchange: not measured: this sptune has no exchange direct", done.stdout)
        done = subprocess.run([os.path.join(ROOT, "scripts", "figures"), "exchnge"], env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no figure 'exchnge'", done.stderr)

    def test_a_reader_that_leaves(self):
        shown = subprocess.run(
            ["bash", "-c", 'scripts/figures show --machine xeon2 | true'], cwd=ROOT, capture_output=True, text=True
        )
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))


class Docs(unittest.TestCase):
    def test_tables_are_of_what_is_kept(self):
        """Under the name of a machine docs/measurement-cpu.md has lines that `show --markdown` prints of its files, and of every file some."""
        with open(os.path.join(ROOT, "docs", "measurement-cpu.md"), encoding="utf-8") as file:
            sections = file.read().split("\n## `")[1:]
        self.assertEqual(len(sections), 4)
        for section in sections:
            machine, rest = section.split("`\n", 1)
            rest = rest.split("\n## ")[0]
            shown = subprocess.run(
                [os.path.join(ROOT, "scripts", "figures"), "show", "--markdown", "--machine", machine], capture_output=True, text=True
            ).stdout.splitlines()
            lines = [line for line in rest.splitlines() if line.startswith(("|", "`scripts/figures"))]
            self.assertEqual([line for line in lines if line not in shown], [], machine)
            self.assertEqual([line for line in shown if line.startswith(("| `", "`")) and line not in lines], [], machine)


if __name__ == "__main__":
    unittest.main()
