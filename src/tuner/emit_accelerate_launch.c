/* tuner/emit_accelerate_launch.c -- launch.sh starts the processes of one host; launch.slurm runs it on every host of a
 * job.
 *
 * A rank order reaches the processes through CUDA_VISIBLE_DEVICES: process i of a host takes the i-th device listed
 * there.
 */
#include "tuner/emit_accelerate.h"

#include "tuner/emit_quote.h"

#include <string.h>

static void header(const struct accelerate_facts *facts, struct text *out, const char *about)
{
    text_add(out, "#!/usr/bin/env bash\n# %s\n", about);
    accelerate_provenance(facts, out);
}

/* Which device each process of machine rank `host` uses, as numbers on that host. */
static void put_devices(const struct accelerate_facts *facts, int host, struct text *out)
{
    for (int i = 0; i < facts->per_host; i++) {
        int rank = host * facts->per_host + i;
        int device = facts->plan->order_n > 0 ? facts->plan->order[rank] % facts->per_host : i;
        text_add(out, "%s%d", i > 0 ? " " : "", device);
    }
}

static void put_mapping(const struct accelerate_facts *facts, struct text *out)
{
    text_add(out,
             "\n# The order of the ranks that keeps each sequence's group on well-joined devices, by PCI bus order.\n"
             "export CUDA_DEVICE_ORDER=PCI_BUS_ID\norders=(\n");
    for (int host = 0; host < facts->hosts; host++) {
        text_add(out, "  \"");
        put_devices(facts, host, out);
        text_add(out, "\"\n");
    }
    text_add(out,
             ")\nread -r -a order <<<\"${orders[machine_rank]}\"\n"
             "if [ -n \"${CUDA_VISIBLE_DEVICES-}\" ]; then\n"
             "  IFS=, read -r -a have <<<\"$CUDA_VISIBLE_DEVICES\"\n"
             "else\n"
             "  mapfile -t have < <(seq 0 %d)\n"
             "fi\n"
             "if [ \"${#have[@]}\" -ne %d ]; then\n"
             "  printf 'launch.sh: %%d devices are visible, the plan is for %d\\n' \"${#have[@]}\" >&2\n"
             "  exit 2\n"
             "fi\n"
             "devices=\nfor i in \"${order[@]}\"; do\n  devices+=${devices:+,}${have[i]}\ndone\n"
             "export CUDA_VISIBLE_DEVICES=$devices\n",
             facts->per_host - 1, facts->per_host, facts->per_host);
}

static void put_order(const struct accelerate_facts *facts, struct text *out)
{
    if (!facts->order)
        return;
    if (!facts->cpu && facts->order_by_host) {
        put_mapping(facts, out);
        return;
    }
    text_add(out, "\n# The plan's rank order, which this launcher cannot set up%s:\n",
             facts->order_by_host ? " (the devices measured are CPUs)" : " (it mixes hosts)");
    for (int rank = 0; rank < facts->world; rank++)
        text_add(out, "#   rank %d: host %d device %d\n", rank, facts->plan->order[rank] / facts->per_host,
                 facts->plan->order[rank] % facts->per_host);
}

static void put_packages(const struct accelerate_facts *facts, struct text *out)
{
    text_add(out,
             "if ! command -v accelerate >/dev/null; then\n"
             "  printf '%%s\\n' 'launch.sh: accelerate is not installed here; one way, in an environment of its own "
             "(python3 -m venv), is' \\\n"
             "    \"  python3 -m pip install 'torch>=2.3' 'transformers>=4.51.3' 'accelerate>=1.12' "
             "'deepspeed>=0.18.2'%s\"%s >&2\n"
             "  exit 127\nfi\n",
             facts->plan->loss == PLAN_LOSS_FUSED ? " liger-kernel" : "",
             facts->cpu
                 ? " \\\n    'and, for what DeepSpeed compiles for CPUs, a C++ compiler and the headers of Python "
                   "(apt install g++ python3-dev)'"
                 : "");
}

/* What the processes would fail of one after another, and their launcher tell with a traceback. Any device file of
 * NVIDIA's or AMD's drivers, or of a GPU under WSL, will do: train.py asks PyTorch. */
static void put_machine(const struct accelerate_facts *facts, struct text *out)
{
    if (facts->cpu)
        text_add(out, "\ncxx=${CXX:-c++}\nif ! command -v \"${cxx%%%% *}\" >/dev/null; then\n"
                      "  printf '%%s\\n' 'launch.sh: DeepSpeed compiles a part of itself for CPUs: it needs a C++ "
                      "compiler and the headers of Python (apt install g++ python3-dev)' >&2\n"
                      "  exit 127\nfi\n");
    else
        text_add(out, "\nif [[ \" $* \" != *' --cpu '* ]] && ! compgen -G '/dev/nvidia*' >/dev/null &&\n"
                      "  [ ! -e /dev/kfd ] && [ ! -e /dev/dxg ]; then\n"
                      "  printf '%%s\\n' 'launch.sh: no GPU is visible here; --cpu tries it on CPUs' >&2\n"
                      "  exit 2\nfi\n");
}

enum status accelerate_launch(const struct accelerate_facts *facts, struct text *out)
{
    bool several = facts->hosts > 1;
    header(facts, out,
           several ? "launch.sh MACHINE_RANK MAIN_ADDRESS [options of train.py]: starts the processes of one host."
                   : "launch.sh [options of train.py]: starts all processes on this host.");
    text_add(out, "set -euo pipefail\n# Where accelerate.yaml and ds_config.json are.\n"
                  "if [[ ${BASH_SOURCE[0]} == */* ]]; then cd -- \"${BASH_SOURCE[0]%%/*}/\"; fi\n\n");
    put_packages(facts, out);
    if (several)
        text_add(out,
                 "if [ $# -lt 2 ]; then\n  printf 'usage: launch.sh MACHINE_RANK MAIN_ADDRESS [options of "
                 "train.py]\\n' >&2\n"
                 "  exit 2\nfi\nmachine_rank=$1 main_address=$2\nshift 2\n"
                 "if [[ ! $machine_rank =~ ^[0-9]+$ ]] || [ \"$machine_rank\" -ge %d ]; then\n"
                 "  printf 'launch.sh: machine rank %%s, there are 0 to %d\\n' \"$machine_rank\" >&2\n  exit 2\nfi\n",
                 facts->hosts, facts->hosts - 1);
    else if (facts->order && !facts->cpu)
        text_add(out, "machine_rank=0\n");
    put_order(facts, out);
    put_machine(facts, out);
    text_add(out, "\nexec accelerate launch --config_file accelerate.yaml");
    if (several)
        text_add(out, " --machine_rank \"$machine_rank\" \\\n  --main_process_ip \"$main_address\" "
                      "--main_process_port \"${MASTER_PORT:-29500}\"");
    text_add(out, " train.py%s \"$@\"\n", facts->cpu ? " --cpu" : "");
    return text_status(out);
}

/* Letters that Slurm and a shell leave alone. */
static void put_job_name(const char *name, struct text *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    text_add(out, "sptune-");
    for (int i = 0; i < 40 && name[i] != '\0'; i++)
        text_add(out, "%c", strchr(plain, name[i]) != NULL ? name[i] : '-');
}

/* srun numbers hosts as the job lists them. Where the plan orders hosts, host i of the job gets the machine rank whose
 * block of ranks the plan puts there. */
static void put_hosts(const struct accelerate_facts *facts, struct text *out)
{
    text_add(out, "machine_ranks=(");
    for (int host = 0; host < facts->hosts; host++) {
        int rank = host;
        for (int r = 0; facts->plan->order_n > 0 && facts->order_by_host && r < facts->hosts; r++)
            if (accelerate_host_of(facts, r) == host)
                rank = r;
        text_add(out, "%s%d", host > 0 ? " " : "", rank);
    }
    text_add(out, ") # of the job's hosts, in the order of its list\n");
}

enum status accelerate_slurm(const struct accelerate_facts *facts, struct text *out)
{
    text_add(out, "#!/usr/bin/env bash\n#SBATCH --job-name=");
    put_job_name(facts->model->name, out);
    text_add(out, "\n#SBATCH --nodes=%d\n#SBATCH --ntasks-per-node=1\n", facts->hosts);
    if (!facts->cpu)
        text_add(out, "#SBATCH --gpus-per-node=%d\n", facts->per_host);
    text_add(out, "#SBATCH --exclusive\n");
    text_add(out, "# sbatch launch.slurm [options of train.py], from its own directory; partition, account and time "
                  "are yours to add.\n");
    accelerate_provenance(facts, out);
    text_add(out, "set -euo pipefail\ncd -- \"${SLURM_SUBMIT_DIR:?start this with sbatch}\"\n\n");
    if (facts->hosts == 1) {
        text_add(out, "exec srun --kill-on-bad-exit=1 ./launch.sh \"$@\"\n");
        return text_status(out);
    }
    put_hosts(facts, out);
    text_add(out, "mapfile -t hosts < <(scontrol show hostnames \"$SLURM_JOB_NODELIST\")\n"
                  "for i in \"${!machine_ranks[@]}\"; do\n"
                  "  if [ \"${machine_ranks[i]}\" -eq 0 ]; then main_address=${hosts[i]}; fi\n"
                  "done\n"
                  "export MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID %% 20000))}\n"
                  "# shellcheck disable=SC2016 # each task expands its own SLURM_NODEID\n"
                  "exec srun --kill-on-bad-exit=1 bash -c \\\n"
                  "  'ranks=($1) main=$2; shift 2; exec ./launch.sh \"${ranks[SLURM_NODEID]}\" \"$main\" \"$@\"' \\\n"
                  "  launch \"${machine_ranks[*]}\" \"$main_address\" \"$@\"\n");
    return text_status(out);
}
