// The profile that a sweep writes to, extended when it was measured under the same conditions.
#pragma once

#include <map>
#include <string>

#include "turbotune/profile/profile.h"

namespace turbotune {

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
    // Takes in what other writers saved meanwhile, then saves atomically. Throws Error.
    void put(ProfileEntry entry);

    const std::string& path() const { return path_; }
    // Where a profile of another compiler or digest went; empty: there was none.
    const std::string& previous() const { return previous_; }
    std::map<std::string, std::string>& provenance() { return profile_.provenance; }

  private:
    bool same_conditions(const Profile& other) const;
    void take_in(const Profile& other);

    std::string path_, previous_;
    Profile profile_;
    std::string version_;  // of the file as this object last saw it
};

}  // namespace turbotune
