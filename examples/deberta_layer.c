/* One self-attention layer of DeBERTa through the C interface: forward, backward, and a check of one gradient.
 *
 *   q, k, v = x W        one fused projection [B, L, 3*H*D]; attention reads its three parts in place
 *   out = attention(q, k, v),  loss = sum(out * target)
 *
 * Runs on the best device, or on the one that is named: deberta_layer cpu. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "turbotune/turbotune.h"

enum { BATCH = 2, HEADS = 4, LENGTH = 200, HEAD_DIM = 64, WIDTH = HEADS * HEAD_DIM };
enum { BUCKETS = 32, MOST = 64, SLOTS = 2 * BUCKETS };
enum { ROWS = BATCH * LENGTH, STATES = ROWS * WIDTH, FUSED = 3 * STATES, TABLE = SLOTS * WIDTH };

static void check(turbotune_status status, const char* what) {
    if (status == TURBOTUNE_OK) return;
    fprintf(stderr, "deberta_layer: %s: %s: %s\n", what, turbotune_status_name(status), turbotune_last_error());
    exit(1);
}

static turbotune_runtime* runtime;
static void* owned[16]; /* device memory */
static int owned_count;

static float* device_array(size_t count) {
    void* pointer = NULL;
    check(turbotune_allocate(runtime, count * sizeof(float), &pointer), "allocate");
    owned[owned_count++] = pointer;
    return pointer;
}

/* Numbers in [-1, 1), the same on every machine. */
static float* random_array(size_t count, unsigned seed) {
    float* host = malloc(count * sizeof(float));
    if (!host) exit(1);
    for (size_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        host[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return host;
}

static float* uploaded(const float* host, size_t count) {
    float* pointer = device_array(count);
    check(turbotune_copy_to_device(runtime, pointer, host, count * sizeof(float)), "copy");
    return pointer;
}

static turbotune_plan* plan_of(turbotune_pass pass) {
    turbotune_disentangled_attention_problem problem;
    turbotune_disentangled_attention_problem_init(&problem, sizeof problem);
    problem.pass = pass;
    problem.dtype = TURBOTUNE_F32;
    problem.batch = BATCH;
    problem.heads = HEADS;
    problem.length = LENGTH;
    problem.head_dim = HEAD_DIM;
    problem.position_buckets = BUCKETS;
    problem.max_relative_positions = MOST;
    problem.dropout = 0.1f;
    const turbotune_strides part = {(int64_t)LENGTH * 3 * WIDTH, 3 * WIDTH, HEAD_DIM};
    problem.q = problem.k = problem.v = part;
    problem.dq = problem.dk = problem.dv = part; /* gradients go back to one fused array, too */
    turbotune_plan* plan = NULL;
    check(turbotune_disentangled_attention_plan_create(runtime, &problem, NULL, NULL, &plan), "plan");
    return plan;
}

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Milliseconds of one execution. */
static double timed(const turbotune_plan* plan, const turbotune_disentangled_attention_buffers* buffers) {
    const int turns = 20;
    check(turbotune_synchronize(runtime, NULL), "synchronize");
    const double start = seconds();
    for (int i = 0; i < turns; ++i) check(turbotune_disentangled_attention_execute(plan, buffers, NULL), "execute");
    check(turbotune_synchronize(runtime, NULL), "synchronize");
    return (seconds() - start) / turns * 1e3;
}

static double loss_of(const turbotune_plan* plan, const turbotune_disentangled_attention_buffers* buffers,
                      const float* target) {
    float* out = malloc(STATES * sizeof(float));
    if (!out) exit(1);
    check(turbotune_disentangled_attention_execute(plan, buffers, NULL), "execute");
    check(turbotune_synchronize(runtime, NULL), "synchronize");
    check(turbotune_copy_to_host(runtime, out, buffers->out, STATES * sizeof(float)), "copy");
    double loss = 0;
    for (size_t i = 0; i < STATES; ++i) loss += (double)out[i] * target[i];
    free(out);
    return loss;
}

int main(int argc, char** argv) {
    turbotune_runtime_options options;
    turbotune_runtime_options_init(&options, sizeof options);
    options.device = argc > 1 ? argv[1] : "auto";
    check(turbotune_runtime_create(&options, &runtime), "runtime");

    turbotune_plan* forward = plan_of(TURBOTUNE_TRAINING_FORWARD);
    turbotune_plan* backward = plan_of(TURBOTUNE_BACKWARD);

    float *qkv = random_array(FUSED, 1), *target = random_array(STATES, 2);
    float *keys = random_array(TABLE, 3), *queries = random_array(TABLE, 4);
    size_t workspace = turbotune_plan_workspace_bytes(forward);
    if (workspace < turbotune_plan_workspace_bytes(backward)) workspace = turbotune_plan_workspace_bytes(backward);

    float *device_qkv = uploaded(qkv, FUSED), *gradient = device_array(FUSED);
    turbotune_disentangled_attention_buffers buffers;
    turbotune_disentangled_attention_buffers_init(&buffers, sizeof buffers);
    buffers.q = device_qkv;
    buffers.k = device_qkv + WIDTH;
    buffers.v = device_qkv + 2 * WIDTH;
    buffers.position_key = uploaded(keys, TABLE);
    buffers.position_query = uploaded(queries, TABLE);
    buffers.out = device_array(STATES);
    buffers.lse = device_array((size_t)BATCH * HEADS * LENGTH);
    buffers.dout = uploaded(target, STATES); /* the gradient of sum(out * target) by out */
    buffers.dq = gradient;
    buffers.dk = gradient + WIDTH;
    buffers.dv = gradient + 2 * WIDTH;
    buffers.d_position_key = device_array(TABLE);
    buffers.d_position_query = device_array(TABLE);
    buffers.workspace = device_array((workspace + sizeof(float) - 1) / sizeof(float));
    buffers.dropout_seed = 7; /* the same in both passes; another offset at each step */
    buffers.dropout_offset = 0;

    const double loss = loss_of(forward, &buffers, target);
    check(turbotune_disentangled_attention_execute(backward, &buffers, NULL), "execute");
    check(turbotune_synchronize(runtime, NULL), "synchronize");

    /* The gradient of one element of k against the slope of the loss about it. */
    const size_t element = (size_t)(LENGTH + 77) * 3 * WIDTH + WIDTH + 2 * HEAD_DIM + 5;
    const float step = 0.02f;
    float given = 0;
    check(turbotune_copy_to_host(runtime, &given, gradient + element, sizeof given), "copy");
    double nearby[2];
    for (int side = 0; side < 2; ++side) {
        const float moved = qkv[element] + (side ? step : -step);
        check(turbotune_copy_to_device(runtime, device_qkv + element, &moved, sizeof moved), "copy");
        nearby[side] = loss_of(forward, &buffers, target);
    }
    check(turbotune_copy_to_device(runtime, device_qkv + element, &qkv[element], sizeof(float)), "copy");
    const double slope = (nearby[1] - nearby[0]) / (2.0 * step);
    const double error = fabs(given - slope) / fabs(slope);

    turbotune_device_info info;
    turbotune_device_info_init(&info, sizeof info);
    check(turbotune_runtime_device(runtime, &info), "device");
    printf("%s, libturbotune %s\n", info.name, turbotune_version());
    printf("forward   %s: %.3f ms\n", turbotune_plan_config(forward), timed(forward, &buffers));
    printf("backward  %s: %.3f ms\n", turbotune_plan_config(backward), timed(backward, &buffers));
    printf("loss %.4f, gradient %.6f, slope %.6f, error %.1e\n", loss, given, slope, error);

    turbotune_plan_destroy(backward);
    turbotune_plan_destroy(forward);
    while (owned_count > 0) turbotune_free(runtime, owned[--owned_count]);
    turbotune_runtime_destroy(runtime);
    free(qkv);
    free(target);
    free(keys);
    free(queries);
    return error < 2e-2 ? 0 : 1;
}
