#include "sweep_view.h"

#include <fmt/format.h>

#include "table.h"

namespace turbotune::cli {

SweepView::SweepView(std::FILE* stream, bool verbose, bool several_devices)
    : progress_(stream), verbose_(verbose), several_devices_(several_devices) {}

// "[3/84]", "[3/84 on 1]"
std::string SweepView::place(const SweepEvent& event) const {
    return fmt::format("[{}/{}{}]", event.workload_index, event.workload_count,
                       several_devices_ ? " on " + event.device : "");
}

std::string SweepView::progress_text(const SweepEvent& event) const {
    std::string text = place(event);
    if (event.candidate_count > 0)
        text += fmt::format(" candidate {}/{}", event.candidate_index, event.candidate_count);
    if (event.best_ms > 0) text += fmt::format(", best {} ms", milliseconds(event.best_ms));
    if (event.eta_s >= 0) text += fmt::format(", {} left", duration(event.eta_s));
    return text + "  " + event.workload.to_string();
}

void SweepView::print(const std::string& line) {
    if (!verbose_) return progress_.print(line);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    progress_.print(fmt::format("{:7.2f} {}", passed.count(), line));
}

void SweepView::candidate(const SweepEvent& event, const char* verb) {
    if (!verbose_) return;
    print(fmt::format("  {}{}/{} {}: {}", several_devices_ ? place(event) + ' ' : "", event.candidate_index,
                      event.candidate_count, verb, event.text));
}

void SweepView::on(const SweepEvent& event) {
    using Kind = SweepEvent::Kind;
    const std::string head = fmt::format("{} {}", place(event), event.workload.to_string());
    switch (event.kind) {
        case Kind::started:
            print(event.text);
            return;
        case Kind::workload_started:
            if (verbose_) print(head);
            break;
        case Kind::workload_resumed:
            if (verbose_) print(head + ": already measured");
            break;
        case Kind::workload_skipped:
            ++skipped_[event.text];
            if (verbose_) print(fmt::format("{}: skipped: {}", head, event.text));
            break;
        case Kind::compiled:
            candidate(event, "compiled");
            break;
        case Kind::rejected:
            candidate(event, "rejected");
            break;
        case Kind::measured:
            candidate(event, "measured");
            break;
        case Kind::workload_finished:
            print(fmt::format("{}: {}", head, event.text));
            break;
        case Kind::workload_failed:
            print(fmt::format("{}: failed: {}", head, event.text));
            break;
        case Kind::workload_handed_over:
            print(fmt::format("{}: left to another device: {}", head, event.text));
            break;
        case Kind::saved:
            return;
    }
    progress_.update(progress_text(event), event.kind == Kind::workload_started);
}

void SweepView::finish() {
    progress_.clear();
    for (const auto& [reason, workloads] : skipped_)
        progress_.print(fmt::format("skipped {}: {}", counted(workloads, "workload"), reason));
}

}  // namespace turbotune::cli
