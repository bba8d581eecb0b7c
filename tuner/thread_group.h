// Threads as many as the system gives: a container may allow fewer than were asked for.
#pragma once

#include <system_error>
#include <thread>
#include <vector>

namespace turbotune {

// `count` threads that run `body`, or as many as can be started. Throws std::system_error when not even one can.
template <class Body>
std::vector<std::thread> start_threads(int count, Body body) {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(count > 0 ? count : 0));
    for (int i = 0; i < count; ++i) {
        try {
            threads.emplace_back(body);
        } catch (const std::system_error&) {
            if (threads.empty()) throw;
            break;
        }
    }
    return threads;
}

}  // namespace turbotune
