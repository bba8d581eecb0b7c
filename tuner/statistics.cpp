// The parts of measure.h that only compute.
#include <algorithm>
#include <cmath>

#include "turbotune/tuner/measure.h"

namespace turbotune {

namespace {

double quantile(const std::vector<double>& sorted, double q) {
    double position = q * static_cast<double>(sorted.size() - 1);
    std::size_t below = static_cast<std::size_t>(position);
    std::size_t above = std::min(below + 1, sorted.size() - 1);
    // lerp stays between its ends to the last bit, so that quantiles never come out of order.
    return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

Latency summarize(std::vector<double> samples) {
    Latency latency;
    if (samples.empty()) return latency;
    std::sort(samples.begin(), samples.end());
    latency.min = samples.front();
    latency.p10 = quantile(samples, 0.1);
    latency.median = quantile(samples, 0.5);
    latency.p90 = quantile(samples, 0.9);
    latency.samples = static_cast<int>(samples.size());
    return latency;
}

double median_of(std::vector<double> samples) {
    return summarize(std::move(samples)).median;
}

int launches_per_sample(double execution_ms, double sample_ms) {
    constexpr double kMost = 1000;
    if (execution_ms <= 0) return int(kMost);
    return int(std::clamp(std::ceil(sample_ms / execution_ms), 1.0, kMost));
}

int retake_outliers(std::vector<double>& samples, const std::function<double()>& again) {
    if (samples.size() < 4) return 0;
    double median = median_of(samples);
    std::vector<double> deviations;
    for (double sample : samples) deviations.push_back(std::abs(sample - median));
    // 1.4826: from a median absolute deviation to a standard deviation. Clock steps are larger than 3 %.
    double threshold = median + std::max(5 * 1.4826 * median_of(deviations), 0.03 * median);
    int retakes = 0, most = int(samples.size() / 4);
    for (double& sample : samples) {
        if (sample <= threshold || retakes == most) continue;
        sample = again();
        ++retakes;
    }
    return retakes;
}

}  // namespace turbotune
