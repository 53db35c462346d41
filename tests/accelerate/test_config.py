"""Accelerate reads what sptune emits for it: YAML by its loader, sizes by its ParallelismConfig, scripts by their interpreters.

The environment of the training processes is made by `accelerate launch` itself (its parser, its defaults from the file, its
prepare_deepspeed_cmd_env). PyTorch may be the stand-in: nothing here computes.
"""

import functools
import glob
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import types
import unittest
import unittest.mock

import emitted
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, DeepSpeedSequenceParallelConfig
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from accelerate.utils.launch import prepare_deepspeed_cmd_env

PROGRAM = emitted.program()
PREFIX = "parallelism_config_"
KNOWN = {
    PREFIX + key
    for key in (
        "dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size sp_backend sp_seq_length "
        "sp_seq_length_is_variable sp_attn_implementation"
    ).split()
}
OFFERED = {"sdpa", "flash_attention_2", "flash_attention_3"}


def launch_environment(case):
    """What `accelerate launch --config_file accelerate.yaml train.py` exports."""
    args = launch_command_parser().parse_args(["--config_file", case.file("accelerate.yaml"), "train.py"])
    with unittest.mock.patch("accelerate.commands.launch.deepspeed_launcher") as launcher:
        launch_command(args)
    args = launcher.call_args.args[0]
    with unittest.mock.patch("accelerate.utils.launch.is_port_in_use", return_value=False):
        return args, prepare_deepspeed_cmd_env(args)[1]


def parallelism(environment):
    with unittest.mock.patch.dict(os.environ, environment, clear=True):
        return ParallelismConfig()


def each_case(check):
    """A test of one case as a test of all."""

    @functools.wraps(check)
    def checked(self):
        self.assertGreater(len(CASES), 80)
        for case in CASES:
            with self.subTest(case.name):
                check(self, case)

    return checked


def setUpModule():
    global ROOT, CASES
    ROOT, CASES = emitted.emit(PROGRAM)


def tearDownModule():
    emitted.remove(ROOT)


class Emitted(unittest.TestCase):
    @each_case
    def test_yaml(self, case):
        config = load_config_from_file(case.file("accelerate.yaml"))
        self.assertIsInstance(config, ClusterConfig)
        self.assertEqual(config.distributed_type.value, "DEEPSPEED")
        self.assertEqual(config.num_processes, case.world)
        self.assertEqual(config.num_processes % config.num_machines, 0)
        self.assertEqual(config.deepspeed_config["deepspeed_config_file"], "ds_config.json")
        self.assertEqual(config.use_cpu, case.cpu)
        self.assertLessEqual(set(config.parallelism_config), KNOWN)  # others would be ignored without a word

    @each_case
    def test_sizes(self, case):
        args, environment = launch_environment(case)
        self.assertTrue(args.use_deepspeed)
        self.assertEqual(environment["ACCELERATE_USE_DEEPSPEED"], "true")
        split = case.plan["sp_size"] > 1
        self.assertEqual(environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true", split)
        config = parallelism(environment)
        self.assertEqual(config.sp_size, case.plan["sp_size"])
        if split:
            self.assertEqual(config.total_size, case.world)
            self.assertEqual(config.data_parallel_size, case.world // config.sp_size)
            self.assertEqual(config.sp_backend, "deepspeed")
            self.assertTrue(config.sp_handler.sp_seq_length_is_variable)
            self.assertEqual((config.tp_size, config.cp_size), (1, 1))

    @each_case
    def test_attention_is_the_models(self, case):
        plan = case.script_plan()
        self.assertIn(plan["attention"], OFFERED)
        self.assertEqual(plan["attention"], case.plan["attention_class"])
        if plan["documents"]:
            self.assertNotEqual(plan["attention"], "sdpa")
            self.assertEqual(plan["micro_batch"], 1)
        if plan["sp_size"] > 1:
            handler = parallelism(launch_environment(case)[1]).sp_handler
            self.assertEqual(handler.sp_attn_implementation, plan["attention"])
            self.assertIn(f'sp_attn_implementation="{plan["attention"]}"', case.text("trainer_args.py"))

    @each_case
    def test_trainer_arguments(self, case):
        module, transformers = {"__file__": case.file("trainer_args.py")}, types.SimpleNamespace(TrainingArguments=dict)
        with unittest.mock.patch.dict("sys.modules", {"transformers": transformers}):
            exec(compile(case.text("trainer_args.py"), "trainer_args.py", "exec"), module)
        arguments = module["training_arguments"]("out", learning_rate=1e-4, bf16=False)
        self.assertEqual((arguments["output_dir"], arguments["learning_rate"], arguments["bf16"]), ("out", 1e-4, False))
        self.assertEqual(arguments["per_device_train_batch_size"], case.plan["micro_batch"])
        self.assertEqual(arguments["gradient_accumulation_steps"], case.plan["accumulate"])
        self.assertEqual(arguments["gradient_checkpointing"], case.plan["checkpointing"] == "full")
        self.assertEqual(os.path.realpath(arguments["deepspeed"]), os.path.realpath(case.file("ds_config.json")))
        sizes = arguments.get("parallelism_config")
        self.assertEqual(sizes.total_size if sizes else None, case.world if case.plan["sp_size"] > 1 else None)

    @each_case
    def test_deepspeed(self, case):
        config = HfDeepSpeedConfig(case.file("ds_config.json"))
        stage = case.plan["zero_stage"]
        self.assertEqual((config.is_zero2(), config.is_zero3()), (stage == 2, stage == 3))
        offload = config.get_value("zero_optimization.offload_optimizer.device")
        self.assertEqual(offload, None if case.plan["offload"] == "none" else "cpu")
        self.assertIn(stage, (1, 2, 3))
        self.assertEqual(
            config.get_value("zero_optimization.offload_param.device"),
            "cpu" if case.plan["offload"] == "params" else None,
        )
        self.assertEqual(config.get_value("gradient_accumulation_steps"), case.plan["accumulate"])
        self.assertEqual(config.get_value("train_micro_batch_size_per_gpu"), case.plan["micro_batch"])
        self.assertEqual(config.get_value("train_batch_size"), "auto")
        bucket = 125_000_000 if case.plan["sp_size"] > 1 else None  # fp32 sums cost 8 bytes an element
        self.assertEqual(config.get_value("zero_optimization.reduce_bucket_size"), bucket)
        self.assertEqual(bool(config.get_value("bf16.enabled")), case.document["problem"]["dtype"] == "bf16")
        self.assertEqual(bool(config.get_value("fp16.enabled")), case.document["problem"]["dtype"] == "fp16")
        self.assertEqual(
            config.get_value("seq_parallel_communication_data_type"), "fp32" if case.plan["sp_size"] > 1 else None
        )

    @each_case
    def test_nothing_beside_the_deepspeed_file(self, case):
        """Accelerate refuses keys of the YAML that belong in the JSON."""
        with unittest.mock.patch.dict(os.environ, launch_environment(case)[1], clear=True):
            self.assertIn("deepspeed_config_file", os.environ["ACCELERATE_CONFIG_DS_FIELDS"])
            DeepSpeedPlugin._deepspeed_config_checks(None)
            os.environ["ACCELERATE_CONFIG_DS_FIELDS"] += ",zero_stage"
            self.assertRaises(ValueError, DeepSpeedPlugin._deepspeed_config_checks, None)

    @each_case
    def test_digests(self, case):
        files = case.document["files"]
        self.assertEqual({row["path"] for row in files} | {"recommendation.json"}, set(os.listdir(case.path)))
        for row in files:
            with open(case.file(row["path"]), "rb") as file:
                self.assertEqual(hashlib.sha256(file.read()).hexdigest(), row["sha256"])

    def test_scripts_are_python_and_shell(self):
        shells = []
        for case in CASES:
            for name in ("train.py", "trainer_args.py"):
                compile(case.text(name), name, "exec")
            shells += [case.file("launch.sh"), case.file("launch.slurm")]
            self.assertTrue(os.access(case.file("launch.sh"), os.X_OK))
        for path in shells[::8] + shells[-8:]:
            subprocess.run(["bash", "-n", path], check=True)
        if shutil.which("shellcheck"):
            done = subprocess.run(
                ["shellcheck", "-s", "bash", *shells[::16], *shells[1::16], *shells[-8:]],
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.stdout, "")

    def test_model_names(self):
        names = {case.script_plan()["model"] for case in CASES if case.name.startswith("odd")}
        self.assertEqual(
            names, {"meta-llama/Llama-3.1-8B", "a'b\"c\\d$(touch x)`y`", "two\nlines: {x", "\xe9\U0001f600\udcff"}
        )
        for case in CASES:
            plan = case.script_plan()
            self.assertEqual(plan["weights"], "pretrained" if plan["model"] == "meta-llama/Llama-3.1-8B" else "random")


class Launching(unittest.TestCase):
    """launch.sh and launch.slurm with a launcher that only says how it was called."""

    @classmethod
    def setUpClass(cls):
        cls.bin = tempfile.mkdtemp(prefix="sptune-test-")
        cls.tool("accelerate", 'printf "%s\\n" "$PWD" "${CUDA_VISIBLE_DEVICES-unset}" "$*"')
        cls.tool("scontrol", "printf 'alpha\\nbeta\\ngamma\\ndelta\\n'")
        cls.tool(
            "srun",
            'shift; for ((SLURM_NODEID = 0; SLURM_NODEID < NODES; SLURM_NODEID++)); do export SLURM_NODEID; "$@"; done',
        )

    @classmethod
    def tearDownClass(cls):
        emitted.remove(cls.bin)

    @classmethod
    def tool(cls, name, body):
        path = os.path.join(cls.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/usr/bin/env bash\n{body}\n")
        os.chmod(path, 0o755)

    def run_in(self, path, directory, *arguments, **environment):
        environment = {"PATH": self.bin + ":" + os.environ["PATH"], **environment}
        done = subprocess.run(
            ["bash", path, *arguments], cwd=directory, env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    def case(self, least_world, most_world, ordered=False, cpu=False):
        for case in CASES:
            if (
                least_world <= case.world <= most_world
                and case.cpu == cpu
                and (case.plan["rank_order"] != list(range(case.world))) == ordered
            ):
                return case
        self.fail("no such case")

    def test_any_directory(self):
        case = self.case(2, 4)
        code, lines, _ = self.run_in(case.file("launch.sh"), "/", "--cpu", "--steps", "two words")
        self.assertEqual(
            (code, lines),
            (0, [case.path, "unset", "launch --config_file accelerate.yaml train.py --cpu --steps two words"]),
        )

    def test_plans_for_cpus(self):
        case = self.case(2, 4, cpu=True)
        self.tool("c++", "exit 0")
        code, lines, error = self.run_in(case.file("launch.sh"), "/", "--steps", "1", CXX="c++")
        self.assertEqual((code, error), (0, ""))
        self.assertEqual(lines[-1], "launch --config_file accelerate.yaml train.py --cpu --steps 1")
        code, lines, error = self.run_in(case.file("launch.sh"), "/", CXX="no-such-compiler")
        self.assertEqual((code, lines), (127, []))
        self.assertRegex(error, r"\Alaunch.sh: .*g\+\+ python3-dev.*\n\Z")

    @unittest.skipIf(glob.glob("/dev/nvidia*") or os.path.exists("/dev/kfd") or os.path.exists("/dev/dxg"), "a GPU")
    def test_without_a_gpu(self):
        """One line before anything is launched, under which no traceback of a launcher stands."""
        code, lines, error = self.run_in(self.case(2, 4).file("launch.sh"), "/")
        self.assertEqual((code, lines), (2, []))
        self.assertRegex(error, r"\Alaunch.sh: no GPU is visible here; --cpu .*\n\Z")

    def test_odd_directories(self):
        for case in [case for case in CASES if case.name.startswith("odd")]:
            code, lines, error = self.run_in(case.file("launch.sh"), "/", "1", "alpha", "--cpu", CUDA_VISIBLE_DEVICES="4,5,6,7")
            self.assertEqual((code, error), (0, ""))
            self.assertIn("launch --config_file accelerate.yaml --machine_rank 1", lines[-1])

    def test_rank_order(self):
        """Reversed ranks: process 0 of a host takes its last device, among those that are visible."""
        case = self.case(2, 2, ordered=True)
        self.assertEqual(self.run_in(case.file("launch.sh"), "/", "--cpu")[1][1], "1,0")
        self.assertEqual(self.run_in(case.file("launch.sh"), "/", "--cpu", CUDA_VISIBLE_DEVICES="6,2")[1][1], "2,6")
        code, lines, error = self.run_in(case.file("launch.sh"), "/", CUDA_VISIBLE_DEVICES="0,1,2")
        self.assertEqual((code, lines), (2, []))
        self.assertIn("3 devices are visible, the plan is for 2", error)

    def test_hosts(self):
        case = self.case(16, 16)
        code, lines, error = self.run_in(
            "launch.slurm",
            case.path,
            "--cpu",
            "--steps",
            "a b",
            SLURM_SUBMIT_DIR=case.path,
            SLURM_JOB_ID="7",
            SLURM_JOB_NODELIST="x",
            NODES="4",
        )
        self.assertEqual((code, error), (0, ""))
        wanted = [
            f"launch --config_file accelerate.yaml --machine_rank {rank} --main_process_ip alpha --main_process_port 20007 "
            "train.py --cpu --steps a b"
            for rank in range(4)
        ]
        self.assertEqual(lines[2::3], wanted)

    def test_hosts_in_order(self):
        """Reversed ranks of four hosts: the job's last host is the first machine rank and the meeting point."""
        case = self.case(16, 16, ordered=True)
        _, lines, _ = self.run_in(
            "launch.slurm", case.path, "--cpu", SLURM_SUBMIT_DIR=case.path, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="x", NODES="4"
        )
        self.assertEqual(
            [re.search(r"machine_rank (\d) --main_process_ip (\w+)", line).groups() for line in lines[2::3]],
            [(str(3 - host), "delta") for host in range(4)],
        )
        self.assertEqual(lines[1::3], ["3,2,1,0"] * 4)

    def test_wrong_use(self):
        case = self.case(16, 16)
        self.assertEqual(self.run_in(case.file("launch.sh"), "/")[0], 2)
        self.assertEqual(self.run_in(case.file("launch.sh"), "/", "4", "alpha")[0], 2)
        self.assertEqual(self.run_in(case.file("launch.sh"), "/", "$(touch x)", "alpha")[0], 2)
        self.assertNotEqual(self.run_in("launch.slurm", case.path)[0], 0)

    def test_without_accelerate(self):
        case = self.case(2, 4)
        code, _, error = self.run_in(case.file("launch.sh"), "/", PATH="/usr/bin:/bin")
        self.assertEqual(code, 127)
        self.assertIn("pip install", error)


class Refusals(unittest.TestCase):
    """What the emitter relies on: Accelerate still refuses and accepts these (cases C29 and C31)."""

    def validate(self, sizes, processes):
        handler = {
            "sp_handler": DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation="sdpa")
        }
        config = ParallelismConfig(**sizes, **(handler if sizes.get("sp_size", 1) > 1 else {}))
        accelerator = types.SimpleNamespace(
            multi_device=True, num_processes=processes, is_fsdp2=True, is_main_process=False, distributed_type=None
        )
        config._validate_accelerator(accelerator)
        return config

    def test_sizes(self):
        self.assertRaises(ValueError, self.validate, {"sp_size": 2, "cp_size": 2}, 4)
        self.assertRaises(ValueError, self.validate, {"dp_shard_size": 8, "cp_size": 8}, 8)
        self.assertRaises(ValueError, self.validate, {"cp_size": 2, "dp_replicate_size": 2, "dp_shard_size": 1}, 4)
        with unittest.mock.patch.object(ParallelismConfig, "_validate_accelerator"):
            accepted = self.validate({"sp_size": 2, "dp_replicate_size": 2, "dp_shard_size": 1}, 4)
        self.assertEqual(accepted.total_size, 4)

    def test_attention(self):
        for name in ("eager", "flex_attention"):
            self.assertRaises(ValueError, DeepSpeedSequenceParallelConfig, sp_attn_implementation=name)
        self.assertIsNone(DeepSpeedSequenceParallelConfig().sp_attn_implementation)  # hence always emitted
        for name in OFFERED:
            DeepSpeedSequenceParallelConfig(sp_attn_implementation=name)


class Script(unittest.TestCase):
    """The parts of train.py that need no PyTorch: rows, padding, positions, labels, accumulation."""

    def script(self, **plan):
        """train.py as a module: packages that are absent answer to any name, tensors are lists."""
        text = CASES[0].text("train.py")
        module = types.ModuleType("train")
        absent = unittest.mock.MagicMock
        torch = absent(frombuffer=lambda values, dtype: list(values), stack=lambda rows: rows)
        torch.utils.data.Dataset = object
        torch.nn.Module = object
        packages = {
            "torch": torch,
            "torch.distributed": torch.distributed,
            "torch.nn": torch.nn,
            "torch.nn.functional": torch.nn.functional,
            "torch.utils": torch.utils,
            "torch.utils.checkpoint": absent(),
            "torch.utils.data": torch.utils.data,
            "transformers": absent(),
        }
        with unittest.mock.patch.dict("sys.modules", packages), unittest.mock.patch(
            "importlib.metadata.version", return_value="9.9.9"
        ):
            exec(compile(text, "train.py", "exec"), module.__dict__)
        module.PLAN.update(plan)
        return module

    def test_padding(self):
        """C12: 10 tokens on 4 ranks are 12, 3 each; 9 labels count."""
        train = self.script(sp_size=4, documents=[])
        batch = train.collate([[list(range(1, 11))]])
        self.assertEqual(len(batch["input_ids"][0]), 12)
        self.assertEqual(batch["position_ids"][0], list(range(12)))
        self.assertEqual(sum(label != -100 for label in batch["labels"][0]), 9)
        train = self.script(sp_size=8, documents=[])
        batch = train.collate([[list(range(4097))]])
        self.assertEqual(len(batch["input_ids"][0]), 4104)
        self.assertEqual(sum(label != -100 for label in batch["labels"][0]), 4096)

    def test_packing(self):
        """C11: documents of 3 and 5. Shifted by one, the last token of each has no label."""
        train = self.script(sp_size=2, documents=[3, 5])
        batch = train.collate([[[11, 12, 13], [21, 22, 23, 24, 25]]])
        self.assertEqual(batch["position_ids"][0], [0, 1, 2, 0, 1, 2, 3, 4])
        self.assertEqual(batch["labels"][0][1:] + [-100], [12, 13, -100, 22, 23, 24, 25, -100])
        batch = train.collate([[[11, 12, 13]]])
        self.assertEqual(batch["position_ids"][0], [0, 1, 2, 0])  # padding is a document of its own
        batch = train.collate([[[11, 12], [], [21, 22]]])  # one without tokens has no label
        self.assertEqual(batch["labels"][0], [-100, 12, -100, 22])

    def test_rows(self):
        train = self.script()
        self.assertEqual(train.cut_rows(list(range(10)), [2, 3]), [[[0, 1], [2, 3, 4]], [[5, 6], [7, 8, 9]]])
        self.assertEqual(train.cut_rows([1, 2], [3]), [])
        self.assertEqual(
            train.pack_rows([[1, 2, 3], [4, 5, 6, 7, 8], [9]], 4), [[[1, 2, 3], [4]], [[5, 6, 7, 8]], [[9]]]
        )
        self.assertEqual(train.pack_rows([], 4), [])
        self.assertGreaterEqual(len(train.library_bytes(100_000)), 100_000)
        self.assertGreaterEqual(len(train.library_bytes(50_000_000)), 50_000_000)

    def test_tokens_per_step(self):
        """With sp P a micro-step sees P times fewer sequences; the accumulation keeps the tokens of a step."""
        for sp_size, steps in ((1, 1), (2, 2), (8, 8)):
            train = self.script(sp_size=sp_size, world=8, micro_batch=1, seq=1000, accumulate=3)
            self.assertEqual(train.accumulation(8000), steps)
            self.assertEqual(train.accumulation(0), 3)
            self.assertRaises(SystemExit, train.accumulation, 8001)

    def test_divisor(self):
        self.assertEqual(self.script(zero_stage=3, sp_size=4).reduction_divisor(16), 16)
        self.assertEqual(self.script(zero_stage=2, sp_size=4).reduction_divisor(16), 4)

    def test_one_kernel(self):
        """On GPUs AdamW is one kernel, where this PyTorch builds it for weights that are on the host still; else its own choice."""
        train = self.script()
        gpu, cpu = types.SimpleNamespace(type="cuda"), types.SimpleNamespace(type="cpu")
        for version, device, fused in (("2.5.0", gpu, True), ("2.11.0+cu130", gpu, True), ("2.4.1", gpu, None), ("2.11.0", cpu, None)):
            with unittest.mock.patch("importlib.metadata.version", return_value=version):
                self.assertIs(train.one_kernel(device), fused)
        self.assertIn("fused=one_kernel(accelerator.device)", CASES[0].text("train.py"))

    def test_versions(self):
        train = self.script()
        with unittest.mock.patch("importlib.metadata.version", return_value="0.18.10"):
            self.assertEqual(train.version("deepspeed"), (0, 18, 10))
            self.assertRaises(SystemExit, train.check_versions)
        with unittest.mock.patch("importlib.metadata.version", return_value="4.51.3.dev0+cu132"):
            train.check_versions()


if __name__ == "__main__":
    unittest.main()
