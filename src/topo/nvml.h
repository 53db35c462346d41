/* topo/nvml.h -- what the NVIDIA driver tells of its GPUs, and how that enters a topology. Inside this room only.
 *
 * The driver's library is loaded when a topology of this machine is opened: libnvidia-ml.so.1, or the file that
 * SPTUNE_NVML names. It is asked on a thread of its own with a deadline, as a driver that is stuck answers nobody.
 *
 *     struct nvml_machine machine;
 *     TRY(nvml_read(NVML_DEADLINE_MS, &machine));    // no library, no driver, no answer in time: machine.why says so
 *     if (!machine.why[0])
 *         TRY(nvml_join(&machine, topo));            // GPUs by bus id, links, what CUDA_VISIBLE_DEVICES leaves
 *     nvml_free(&machine);
 */
#ifndef SPTUNE_TOPO_NVML_H
#define SPTUNE_TOPO_NVML_H

#include "topo/build.h"

enum {
    NVML_GPUS_MAX = 64,
    NVML_LINKS_MAX = 18, /* of one GPU */
    NVML_INSTANCES_MAX = 8,
    NVML_DEADLINE_MS = 10000,
};

/* A MIG instance: what a process sees of a GPU that was split. */
struct nvml_instance {
    char uuid[96], name[64];
    int64_t memory_bytes;
};

struct nvml_gpu {
    char busid[16]; /* as in struct topo_gpu; "" for a lost GPU whose place the driver does not tell */
    char name[64], uuid[96];
    bool lost;            /* the driver knows it and does not reach it */
    int64_t memory_bytes; /* -1 not told */
    int arch;             /* 90 for compute capability 9.0; -1 not told */
    int nvlinks;          /* that are up; -1 not told */
    int switch_links;     /* of these, to a switch */
    int dark_links;       /* of these, with an end that is not told, as in virtual machines */
    bool mig;
    int ninstances;
    struct nvml_instance instances[NVML_INSTANCES_MAX];
    int others;    /* processes that compute on it, this one not counted; -1 not told */
    int other_pid; /* one of them, as the driver numbers it */
};

enum nvml_p2p { NVML_P2P_UNKNOWN = -1, NVML_P2P_NO, NVML_P2P_YES };

struct nvml_machine {
    char why[256];  /* why there is no answer; "" when there is one */
    bool installed; /* a library is here, though it may not answer */
    char driver[80];
    int n;
    struct nvml_gpu *gpus;   /* [n] in the driver's order, which is bus order */
    int *direct;             /* [n][n] NVLinks from one GPU straight to another */
    signed char *p2p;        /* [n][n] enum nvml_p2p: may each read and write the other's memory? */
    signed char *p2p_nvlink; /* ... and is that over NVLink? */
};

/* The driver's library, which stays loaded; NULL and `why` when there is none. */
void *nvml_open(char *why, size_t size);
/* *at, a pointer to a function, is NULL where the library has none of the name. */
void nvml_find(void *library, const char *name, void *at);
enum status nvml_read(int deadline_ms, struct nvml_machine *out); /* STATUS_NOMEM alone; see `why` */
void nvml_free(struct nvml_machine *machine);

/* One device of CUDA's list in this process. */
struct nvml_visible {
    int gpu;      /* index into gpus */
    int instance; /* index into its instances, -1: the whole GPU */
};

/* What CUDA lists and in which order, by the value of CUDA_VISIBLE_DEVICES (NULL when unset): indices, or the beginnings
 * of UUIDs that fit one GPU each, or UUIDs of MIG instances. As CUDA does, the list ends at the first entry that fits
 * nothing, an entry given twice leaves nothing, and of several instances one is used. out[NVML_GPUS_MAX]. *ordered:
 * false where GPUs of several kinds are listed fastest first, an order that only CUDA knows. */
int nvml_list(const struct nvml_machine *machine, const char *visible, const char *order, struct nvml_visible *out,
              bool *out_ordered);

/* The GPUs of `topo` (as PCI shows them) become those that CUDA shows here, with the driver's facts. The fingerprint is
 * the caller's to renew. */
enum status nvml_join(const struct nvml_machine *machine, struct topo *topo);
/* Both, and a warning where there was no answer. */
enum status nvml_apply(struct topo *topo);

#endif
