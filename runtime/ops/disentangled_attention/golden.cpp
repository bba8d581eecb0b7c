// Golden files: in.q, in.k, in.v, in.do [B, L, H*D], in.pk, in.pq [2*span, H*D], in.keep [B, L]; out.o, out.dq, out.dk,
// out.dv, out.dpk, out.dpq like what they belong to. The metadata entry `case` is JSON with the sizes.
#include <fmt/format.h>

#include "cases.h"
#include "reference.h"
#include "turbotune/base/error.h"
#include "turbotune/base/json.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr std::int64_t kMost = 1 << 20;

struct Golden {
    Problem problem;
    bool has_mask = false;
};

Golden read_description(const SafetensorsFile& file) {
    const auto entry = file.metadata.find("case");
    if (entry == file.metadata.end()) throw InvalidArgument("case", "the file's metadata has no entry `case`");
    const Json json = parse_json(entry->second, "metadata entry `case`");
    JsonReader reader(json, "metadata entry `case`");
    Golden golden;
    Problem& problem = golden.problem;
    problem.batch = static_cast<int>(reader.integer("B", 1, kMost));
    problem.heads = static_cast<int>(reader.integer("H", 1, kMost));
    problem.length = static_cast<int>(reader.integer("L", 1, kMost));
    problem.head_dim = static_cast<int>(reader.integer("D", 1, kMost));
    problem.c2p = reader.boolean("c2p");
    problem.p2c = reader.boolean("p2c");
    problem.position_buckets = static_cast<int>(reader.integer("position_buckets", -kMost, kMost));
    problem.max_relative_positions = static_cast<int>(reader.integer("max_relative_positions", 1, kMost));
    golden.has_mask = reader.has("mask") && reader.text("mask") != "none";
    if (reader.has("span") && reader.integer("span", 1, kMost) != problem.span())
        reader.fail("span", fmt::format("does not follow from the buckets, which give {}", problem.span()));
    return golden;
}

const HostTensor& tensor(const SafetensorsFile& file, const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) throw InvalidArgument(name, "missing tensor");
    if (found->second.shape != shape)
        throw InvalidArgument(
            name, fmt::format("shape {}, expected {}", shape_to_string(found->second.shape), shape_to_string(shape)));
    return found->second;
}

}  // namespace

std::vector<TestCase> make_golden_cases(const SafetensorsFile& file,
                                        std::vector<std::pair<std::string, std::string>>* skipped) {
    const Golden golden = read_description(file);
    const Problem& described = golden.problem;
    const std::int64_t width = std::int64_t{described.heads} * described.head_dim;
    const std::vector<std::int64_t> rows = {described.batch, described.length, width};
    const std::vector<std::int64_t> table = {2 * std::int64_t{described.span()}, width};

    std::vector<Pass> passes = {Pass::inference, Pass::training_forward};
    if (file.tensors.count("out.dq"))
        passes.push_back(Pass::backward);
    else if (skipped)
        skipped->emplace_back("backward", "the file has no gradients");

    std::vector<TestCase> cases;
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        Problem problem = described;
        problem.dtype = dtype;
        problem.mask = golden.has_mask;
        problem.validate();
        NamedTensors inputs;
        for (const char* name : {"q", "k", "v"}) inputs[name] = tensor(file, std::string("in.") + name, rows).to(dtype);
        if (problem.c2p) inputs["position_key"] = tensor(file, "in.pk", table).to(dtype);
        if (problem.p2c) inputs["position_query"] = tensor(file, "in.pq", table).to(dtype);
        if (problem.mask) inputs["mask"] = tensor(file, "in.keep", {described.batch, described.length}).to(DType::u8);
        // The file has no lse: it is the float64 reference's, of these very inputs.
        const NamedTensors forward = forward_reference(problem, inputs, 0, 0);
        for (Pass pass : passes) {
            TestCase test_case;
            problem.pass = pass;
            test_case.inputs = inputs;
            test_case.label = fmt::format("{} B={} H={} L={} D={} {}", to_string(pass), problem.batch, problem.heads,
                                          problem.length, problem.head_dim, turbotune::to_string(dtype));
            test_case.problem = problem.to_fields();
            test_case.outputs = output_specs(problem);
            test_case.tolerance = tolerance_of(problem);
            if (pass == Pass::backward) {
                test_case.inputs["dout"] = tensor(file, "in.do", rows).to(dtype);
                test_case.inputs["out"] = tensor(file, "out.o", rows).to(dtype);
                test_case.inputs["lse"] = forward.at("lse").to(DType::f32);
                for (const char* name : {"dq", "dk", "dv"})
                    test_case.expected[name] = tensor(file, std::string("out.") + name, rows);
                if (problem.c2p) test_case.expected["d_position_key"] = tensor(file, "out.dpk", table);
                if (problem.p2c) test_case.expected["d_position_query"] = tensor(file, "out.dpq", table);
            } else {
                test_case.expected["out"] = tensor(file, "out.o", rows);
                if (pass == Pass::training_forward) test_case.expected["lse"] = forward.at("lse");
            }
            cases.push_back(std::move(test_case));
        }
    }
    return cases;
}

}  // namespace turbotune::disentangled_attention
