// Reads and writes the safetensors format (8-byte little-endian header length, JSON header, data).
// https://huggingface.co/docs/safetensors : format description.
#pragma once

#include <map>
#include <string>

#include "turbotune/base/tensor.h"

namespace turbotune {

struct SafetensorsFile {
    NamedTensors tensors;
    std::map<std::string, std::string> metadata;   // the "__metadata__" entry
};

// Throws InvalidArgument naming the file for anything malformed: truncated, offsets outside the
// data, sizes that do not match the shape, unknown dtypes (F64, F32, F16, BF16, I32, U8, BOOL are known).
SafetensorsFile read_safetensors(const std::string& path);
SafetensorsFile parse_safetensors(const std::string& bytes, const std::string& name_for_errors);
void write_safetensors(const std::string& path, const SafetensorsFile& file);

}  // namespace turbotune
