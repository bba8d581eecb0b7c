/* The C interface of TurboTune: C11 and C++, one header, no other one needed.
 *
 *   turbotune_runtime_options_init  ->  turbotune_runtime_create
 *   turbotune_disentangled_attention_problem_init  ->  ..._plan_create  ->  ..._execute on a stream and buffers
 *
 * Errors. Every function that can fail returns a turbotune_status; anything but TURBOTUNE_OK leaves a sentence in
 * turbotune_last_error() of the calling thread, and writes no result. No exception leaves the library. A null argument
 * that is needed is TURBOTUNE_INVALID_ARGUMENT; destroying null does nothing.
 *
 * Structs begin with `struct_size`, set by their init function from the caller's sizeof. A library that knows more
 * fields takes their defaults; one that knows fewer refuses a struct whose unknown fields are not zero.
 *
 * Threads. A runtime and a plan may be used by any number of threads at once; creating and destroying are the caller's
 * to order: nobody may use a handle while or after it is destroyed. A plan keeps what it needs of its runtime, so the
 * runtime may be destroyed first.
 *
 * Strings are UTF-8. Those returned belong to the library: a handle's live as long as the handle, others for ever,
 * except that of turbotune_last_error. */
#ifndef TURBOTUNE_TURBOTUNE_H
#define TURBOTUNE_TURBOTUNE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TURBOTUNE_API __attribute__((visibility("default")))
#else
#define TURBOTUNE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, such as "0.1.0". */
TURBOTUNE_API const char* turbotune_version(void);

/* ---- Errors ---- */

typedef enum turbotune_status {
    TURBOTUNE_OK = 0,
    TURBOTUNE_UNSUPPORTED = 1,      /* a well-formed problem outside the envelope; the message names the limit */
    TURBOTUNE_INVALID_ARGUMENT = 2, /* a mistake; the message names argument and value */
    TURBOTUNE_COMPILE_ERROR = 3,    /* no compiler, or it refused a kernel; the message ends with its log */
    TURBOTUNE_DEVICE_ERROR = 4,     /* a driver call failed, or there is no usable device */
    TURBOTUNE_PROFILE_MISS = 5,     /* policy profile_only, and no profile holds the workload */
    TURBOTUNE_STORE_ERROR = 6,
    TURBOTUNE_OUT_OF_MEMORY = 7,    /* of the host; that of a device is TURBOTUNE_DEVICE_ERROR */
    TURBOTUNE_INTERNAL_ERROR = 8    /* a fault of the library */
} turbotune_status;

/* "ok", "unsupported", "invalid_argument", ...; "unknown" for other numbers. */
TURBOTUNE_API const char* turbotune_status_name(int status);

/* What the last call of this thread that failed had to say; "" when none has. Valid until the next call that fails in
 * this thread. */
TURBOTUNE_API const char* turbotune_last_error(void);

/* Level: 0 debug, 1 info, 2 warning, 3 error. `callback` may be called from any thread, several at a time, and must not
 * call back into the library. Null restores the default: warnings and errors to standard error. Process-wide. */
typedef void (*turbotune_log_callback)(int level, const char* message, void* user);
TURBOTUNE_API turbotune_status turbotune_set_log_callback(turbotune_log_callback callback, void* user);

/* ---- Devices ---- */

typedef struct turbotune_device_info {
    size_t struct_size;
    char id[16];            /* what turbotune_runtime_options.device takes: "0", "1", ..., "cpu" */
    char name[128];         /* "NVIDIA H200"; a hint only */
    char device_class[128]; /* the devices for which one profile holds */
    char target[64];        /* the compiler's name of the architecture, "sm_90a" */
    char tiers[64];         /* kernel tiers that it runs, best first: "sm90 mma simt" */
    char uuid[64];          /* "" on the CPU */
    int32_t is_gpu;
    int32_t ordinal;
    int32_t multiprocessors; /* CPU: threads used */
    int32_t driver_version;  /* 13000 for 13.0; CPU: 0 */
    int64_t memory_bytes;
    int64_t l2_bytes;
    int64_t shared_bytes_per_block;
} turbotune_device_info;

TURBOTUNE_API void turbotune_device_info_init(turbotune_device_info* info, size_t struct_size);
/* GPUs first, the CPU last, so at least 1. */
TURBOTUNE_API turbotune_status turbotune_device_count(int32_t* count);
TURBOTUNE_API turbotune_status turbotune_device_get(int32_t index, turbotune_device_info* info);
/* The one that "auto" opens: the first GPU, else the CPU. */
TURBOTUNE_API turbotune_status turbotune_device_best(turbotune_device_info* info);

/* ---- Runtime: one device, its kernels, its profiles and the policy ---- */

typedef struct turbotune_runtime turbotune_runtime;

typedef struct turbotune_runtime_options {
    size_t struct_size;
    const char* device;          /* "auto" (also null), "cpu", "0", "1", ... */
    const char* policy;          /* null or "auto": $TURBOTUNE_POLICY, else profiles and then the heuristic; "heuristic",
                                    "autotune", "fixed", "profile_only" */
    const char* const* profiles; /* paths of profiles that come before those found by themselves */
    size_t profile_count;
    int32_t discover_profiles;   /* 1: look in the profile directories, too */
    int32_t autotune_candidates; /* policy autotune: how many configs, and for how long per workload */
    double autotune_budget_ms;
    const char* fixed_config;    /* policy fixed: as turbotune_plan_config prints it */
    const char* store_directory; /* of compiled kernels; null: $TURBOTUNE_CACHE_DIR, else the user's cache */
    int64_t store_max_bytes;
    int32_t store_memory_only;   /* 1: no files */
    int32_t reserved;
} turbotune_runtime_options;

/* Defaults in every field. */
TURBOTUNE_API void turbotune_runtime_options_init(turbotune_runtime_options* options, size_t struct_size);
/* `options` null: all defaults. Opens the device; reads profiles on first use. */
TURBOTUNE_API turbotune_status turbotune_runtime_create(const turbotune_runtime_options* options,
                                                        turbotune_runtime** runtime);
TURBOTUNE_API void turbotune_runtime_destroy(turbotune_runtime* runtime);
TURBOTUNE_API turbotune_status turbotune_runtime_device(const turbotune_runtime* runtime, turbotune_device_info* info);

/* ---- Memory and streams of the runtime's device, for programs that bring none of their own ----
 * Device pointers are CUdeviceptr values on a GPU and ordinary pointers on the CPU. A stream is a CUstream (null: the
 * default one); the CPU does everything at once and ignores it. */

TURBOTUNE_API turbotune_status turbotune_allocate(turbotune_runtime* runtime, size_t bytes, void** pointer);
TURBOTUNE_API void turbotune_free(turbotune_runtime* runtime, void* pointer);
/* These wait until they are done; work on other streams is not waited for. */
TURBOTUNE_API turbotune_status turbotune_copy_to_device(turbotune_runtime* runtime, void* to, const void* from,
                                                        size_t bytes);
TURBOTUNE_API turbotune_status turbotune_copy_to_host(turbotune_runtime* runtime, void* to, const void* from,
                                                      size_t bytes);
TURBOTUNE_API turbotune_status turbotune_fill(turbotune_runtime* runtime, void* pointer, int value, size_t bytes);
TURBOTUNE_API turbotune_status turbotune_stream_create(turbotune_runtime* runtime, void** stream);
TURBOTUNE_API void turbotune_stream_destroy(turbotune_runtime* runtime, void* stream);
/* Waits for the stream; a fault of earlier work on it is reported here. */
TURBOTUNE_API turbotune_status turbotune_synchronize(turbotune_runtime* runtime, void* stream);

/* ---- Plans: a problem made ready ---- */

typedef struct turbotune_plan turbotune_plan;

TURBOTUNE_API void turbotune_plan_destroy(turbotune_plan* plan);
/* Bytes of device memory that `workspace` must have; 0 for null. Not shared by executions that overlap in time. */
TURBOTUNE_API size_t turbotune_plan_workspace_bytes(const turbotune_plan* plan);
/* The schedule, "tier=mma block_m=64 ..."; "" for null. */
TURBOTUNE_API const char* turbotune_plan_config(const turbotune_plan* plan);
/* Where the config came from: "profile", "heuristic", "autotune", "fixed"; "" for null. */
TURBOTUNE_API const char* turbotune_plan_origin(const turbotune_plan* plan);
/* Why nothing better was there; "" for an exact match and for null. */
TURBOTUNE_API const char* turbotune_plan_note(const turbotune_plan* plan);

typedef struct turbotune_kernel_info {
    size_t struct_size;
    char name[128];
    int32_t registers; /* per thread; this and the next four are -1 where the compiler does not tell */
    int32_t local_bytes;
    int32_t spill_store_bytes;
    int32_t spill_load_bytes;
    int32_t static_shared_bytes;
    int32_t reserved;
    double compile_ms; /* of the compile that made it, today or earlier */
} turbotune_kernel_info;

TURBOTUNE_API void turbotune_kernel_info_init(turbotune_kernel_info* info, size_t struct_size);
/* Kernels of one execution, in launch order; 0 for null. */
TURBOTUNE_API int32_t turbotune_plan_kernel_count(const turbotune_plan* plan);
TURBOTUNE_API turbotune_status turbotune_plan_kernel(const turbotune_plan* plan, int32_t index,
                                                     turbotune_kernel_info* info);

/* ---- Disentangled attention (DeBERTa-v2, DeBERTa-v3) ----
 * Per batch b and head h, with PK and PQ the tables of position keys and position queries:
 *   s_ij = scale * (q_i . k_j + [c2p] q_i . PK[slot(i-j)] + [p2c] k_j . PQ[slot(i-j)]),  scale = 1/sqrt(D (1+c2p+p2c))
 *   O = dropout(softmax_j(s)) V
 * slot(d) = clamp(bucket(d) + span, 0, 2 span - 1), as Hugging Face's make_log_bucket_position has it; span is
 * position_buckets where that is above 0, else max_relative_positions. */

typedef enum turbotune_pass {
    TURBOTUNE_INFERENCE = 0,        /* out */
    TURBOTUNE_TRAINING_FORWARD = 1, /* out and lse */
    TURBOTUNE_BACKWARD = 2          /* dq, dk, dv and the gradients of the tables, from out, lse and dout */
} turbotune_pass;

typedef enum turbotune_layout {
    TURBOTUNE_PADDED = 0, /* [B, L, H*D] */
    TURBOTUNE_PACKED = 1  /* [T, H*D]; sequence b has rows cu_seqlens[b] to cu_seqlens[b+1] - 1;
                             cu_seqlens begins with 0, never falls and ends with T */
} turbotune_layout;

typedef enum turbotune_dtype { TURBOTUNE_F32 = 0, TURBOTUNE_F16 = 1, TURBOTUNE_BF16 = 2 } turbotune_dtype;

typedef enum turbotune_math {
    TURBOTUNE_STRICT = 0, /* f32: IEEE arithmetic; half types always use tensor cores */
    TURBOTUNE_FAST = 1    /* f32 only: tf32 tensor cores. Factors are rounded to 11 significant bits, and to infinity from
                             3.4015e38 on. */
} turbotune_math;

/* In elements: element (b, i, h, d) lies at b*batch + i*row + h*head + d. All 0: dense. Packed tensors and tables
 * ignore `batch`. On a GPU pointers must be aligned to 16 bytes; strides that are no multiples of 16 bytes may take slower
 * kernels. */
typedef struct turbotune_strides {
    int64_t batch, row, head;
} turbotune_strides;

typedef struct turbotune_disentangled_attention_problem {
    size_t struct_size;
    int32_t pass;     /* turbotune_pass */
    int32_t layout;   /* turbotune_layout */
    int32_t dtype;    /* turbotune_dtype of q, k, v, out, the tables and all their gradients */
    int32_t math;     /* turbotune_math */
    int32_t batch;    /* B; packed: sequences */
    int32_t heads;    /* H */
    int32_t length;   /* L: rows of every sequence; packed: of the longest one */
    int32_t head_dim; /* D: 32, 64 or 128 */
    int64_t tokens;   /* T; packed only */
    int32_t c2p, p2c; /* 1: the term is there */
    int32_t position_buckets;       /* 0 or less: none, a slot for each distance */
    int32_t max_relative_positions;
    int32_t mask;     /* 1: a keep mask is given; padded only */
    float dropout;    /* probability in [0, 1) that an attention weight is dropped; training passes only */
    int64_t mask_batch_stride;      /* bytes; 0: L */
    turbotune_strides q, k, v, out; /* for instance views of one [B, L, 3*H*D] projection */
    turbotune_strides position_key, position_query;
    turbotune_strides dout, dq, dk, dv, d_position_key, d_position_query; /* backward */
} turbotune_disentangled_attention_problem;

/* inference of padded bf16, 1 x 1 x 1 x 64, both terms, 256 buckets up to 512, dense tensors. */
TURBOTUNE_API void turbotune_disentangled_attention_problem_init(turbotune_disentangled_attention_problem* problem,
                                                                 size_t struct_size);

/* Device pointers. What a pass does not use may be null. Rows of hidden tokens must hold finite numbers. */
typedef struct turbotune_disentangled_attention_buffers {
    size_t struct_size;
    const void* q; /* [B, L, H*D], packed [T, H*D]; and so k, v, out, dout, dq, dk, dv */
    const void* k;
    const void* v;
    const void* position_key;   /* [2*span, H*D], row = slot; with c2p */
    const void* position_query; /* [2*span, H*D]; with p2c */
    const uint8_t* mask;        /* [B, L], 1 = keep */
    const int32_t* cu_seqlens;  /* [B + 1]; packed */
    void* out;                  /* written by the forward passes, read by backward */
    float* lse;                 /* [B, H, L], packed [H, T]: log2 of the softmax's denominator; written by
                                   training_forward, read by backward */
    const void* dout;           /* gradient of the loss by out */
    void* dq;                   /* every element is written */
    void* dk;
    void* dv;
    void* d_position_key;       /* summed over the batch; every slot is written */
    void* d_position_query;
    void* workspace;            /* turbotune_plan_workspace_bytes, aligned to 256 bytes */
    uint64_t dropout_seed;      /* with dropout: the same in forward and backward; another offset for each layer and */
    uint64_t dropout_offset;    /* step gives another mask */
} turbotune_disentangled_attention_buffers;

/* Null pointers everywhere. */
TURBOTUNE_API void turbotune_disentangled_attention_buffers_init(turbotune_disentangled_attention_buffers* buffers,
                                                                 size_t struct_size);

/* Whether the runtime's device has kernels for the problem: TURBOTUNE_OK, TURBOTUNE_UNSUPPORTED or
 * TURBOTUNE_INVALID_ARGUMENT. Compiles nothing; asks neither profiles nor the policy. */
TURBOTUNE_API turbotune_status turbotune_disentangled_attention_supported(
    turbotune_runtime* runtime, const turbotune_disentangled_attention_problem* problem);

/* Picks a config by the runtime's policy and loads its kernels: from the store, else compiled, which takes seconds.
 * `config`: this one instead, as turbotune_plan_config prints it; null: by policy. `stream` is only asked whether it is
 * being captured (then nothing is tuned). */
TURBOTUNE_API turbotune_status turbotune_disentangled_attention_plan_create(
    turbotune_runtime* runtime, const turbotune_disentangled_attention_problem* problem, const char* config,
    void* stream, turbotune_plan** plan);

/* Enqueues on the stream: allocates nothing, waits for nothing, may be captured in a graph. Several threads may execute
 * one plan at once, with other streams and buffers. */
TURBOTUNE_API turbotune_status turbotune_disentangled_attention_execute(
    const turbotune_plan* plan, const turbotune_disentangled_attention_buffers* buffers, void* stream);

/* Which attention weights the problem's dropout keeps, for tests: keep[((b*heads + h)*length + i)*length + j] is 1 when
 * the weight of key j for query i survives, else 0; in host memory, batch * heads * length * length bytes. Packed: rows
 * and columns count within their sequence. */
TURBOTUNE_API turbotune_status turbotune_disentangled_attention_keep_mask(
    const turbotune_disentangled_attention_problem* problem, uint64_t dropout_seed, uint64_t dropout_offset,
    uint8_t* keep);

#ifdef __cplusplus
}
#endif

#endif /* TURBOTUNE_TURBOTUNE_H */
