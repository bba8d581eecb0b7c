#include "tier.h"

#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

Fields problem_parameters(const Problem& problem) {
    Fields parameters;
    parameters.set("head_dim", problem.head_dim);
    parameters.set("dtype", problem.dtype == DType::f32 ? 0 : problem.dtype == DType::f16 ? 1 : 2);
    parameters.set("c2p", FieldValue(problem.c2p));
    parameters.set("p2c", FieldValue(problem.p2c));
    parameters.set("mask", FieldValue(problem.mask));
    parameters.set("packed", FieldValue(problem.layout == Layout::packed));
    parameters.set("lse", FieldValue(problem.pass == Pass::training_forward));
    parameters.set("dropout", FieldValue(problem.dropout > 0));
    return parameters;
}

const Tier& find_tier(const std::string& name) {
    for (const Tier* tier : {&sm90_tier(), &mma_tier(), &simt_tier(), &host_tier(), &reference_tier()})
        if (name == tier->name()) return *tier;
    throw InvalidArgument("tier", "unknown value \"" + name + "\"; one of: sm90, mma, simt, host");
}

}  // namespace turbotune::disentangled_attention
