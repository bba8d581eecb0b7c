// The profile that a sweep writes to, extended when it was measured under the same conditions.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "turbotune/profile/profile.h"

namespace turbotune {

// The file that a profile of that name is written to: what symbolic links, which saving by rename would replace, lead
// to. Makes its folder. Throws InvalidArgument for what is no file, or where nothing can be written.
std::string prepare_output(const std::string& path);

class ProfileFile {
  public:
    // `fresh` is the profile as it would be with no entries. What is at the path is
    //   extended                      when device class, compiler and the digests of fresh.templates are its own;
    //   set aside                     when compiler or a digest differ, or entries have no digest;
    //   refused with InvalidArgument  when it is broken, no regular file or of another device class (nothing is
    //                                 touched).
    // A symbolic link stays: what it points to is the profile.
    // Throws Error when the folder cannot be made or written.
    ProfileFile(std::string path, Profile fresh);

    const ProfileEntry* find(const Workload& workload) const { return profile_.find(workload); }
    // What is not saved yet is, unless that fails: flush() tells.
    ~ProfileFile();
    ProfileFile(const ProfileFile&) = delete;
    ProfileFile& operator=(const ProfileFile&) = delete;

    // True when the entry is on disk. A file beyond a MiB, whose saving takes long, is saved at most every ten seconds;
    // what a killed process had not saved is in its journal. Throws Error.
    bool put(ProfileEntry entry);
    // Takes in what other writers saved meanwhile, then saves atomically what is not saved yet. Throws Error.
    void flush();

    const std::string& path() const { return path_; }
    // Where a profile of another compiler or digest went; empty: there was none.
    const std::string& previous() const { return previous_; }
    std::map<std::string, std::string>& provenance() { return profile_.provenance; }

  private:
    bool same_conditions(const Profile& other) const;
    void take_in(const Profile& other);

    std::string path_, previous_;
    Profile profile_;
    std::vector<ProfileEntry> unsaved_;
    std::size_t bytes_ = 0;  // of the file as last saved
    std::chrono::steady_clock::time_point saved_at_{};
    std::string version_;  // of the file as this object last saw it
};

}  // namespace turbotune
