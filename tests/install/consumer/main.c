/* A C program that knows of the installed package alone. */
#include <stdio.h>
#include <turbotune/turbotune.h>

int main(void) {
    turbotune_runtime_options options;
    turbotune_runtime_options_init(&options, sizeof options);
    options.device = "cpu";
    turbotune_runtime* runtime = NULL;
    if (turbotune_runtime_create(&options, &runtime) != TURBOTUNE_OK) {
        fprintf(stderr, "%s\n", turbotune_last_error());
        return 1;
    }
    turbotune_disentangled_attention_problem problem;
    turbotune_disentangled_attention_problem_init(&problem, sizeof problem);
    const turbotune_status status = turbotune_disentangled_attention_supported(runtime, &problem);
    printf("libturbotune %s: %s\n", turbotune_version(), turbotune_status_name(status));
    turbotune_runtime_destroy(runtime);
    return status == TURBOTUNE_OK ? 0 : 1;
}
