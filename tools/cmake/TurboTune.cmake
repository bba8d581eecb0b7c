# Helpers of the build. A room is a library whose include path holds its own headers and those of
# the rooms that it names, and nothing else: an include of a higher room does not build.

add_library(turbotune_warnings INTERFACE)
target_compile_options(turbotune_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(TURBOTUNE_WARNINGS_AS_ERRORS)
    target_compile_options(turbotune_warnings INTERFACE -Werror)
endif()

function(turbotune_header_only name include_dir)
    add_library(turbotune_${name} INTERFACE)
    target_include_directories(turbotune_${name} SYSTEM INTERFACE ${include_dir})
    target_compile_definitions(turbotune_${name} INTERFACE ${ARGN})
endfunction()

# turbotune_room(NAME ROOT DEPENDS lower... LINK others...)
# Sources: every .cpp below the current folder/NAME (or the folder itself when it is called NAME).
# Headers: ROOT/turbotune/NAME, seen through a link in a folder of this room's own.
function(turbotune_room name root)
    cmake_parse_arguments(ROOM "" "SOURCE_DIR" "DEPENDS;LINK" ${ARGN})
    if(NOT ROOM_SOURCE_DIR)
        set(ROOM_SOURCE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/${name})
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${ROOM_SOURCE_DIR}/*.cpp)
    if(NOT sources)   # a room without code yet
        set(sources ${CMAKE_BINARY_DIR}/rooms/${name}_empty.cpp)
        file(WRITE ${sources} "")
    endif()
    set(include_dir ${CMAKE_BINARY_DIR}/rooms/${name})
    file(MAKE_DIRECTORY ${include_dir}/turbotune)
    file(CREATE_LINK ${root}/turbotune/${name} ${include_dir}/turbotune/${name} SYMBOLIC)
    add_library(turbotune_${name} STATIC ${sources})
    target_include_directories(turbotune_${name} PUBLIC ${include_dir} PRIVATE ${ROOM_SOURCE_DIR})
    foreach(lower IN LISTS ROOM_DEPENDS)
        target_link_libraries(turbotune_${name} PUBLIC turbotune_${lower})
    endforeach()
    target_link_libraries(turbotune_${name} PRIVATE turbotune_warnings turbotune_fmt)
    target_link_libraries(turbotune_${name} PUBLIC nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS} ${ROOM_LINK})
    set_property(GLOBAL APPEND PROPERTY TURBOTUNE_ROOMS ${name})
endfunction()
