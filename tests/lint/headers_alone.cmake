# Every header compiles alone, and twice: one generated source for each. Built by the test lint_headers_alone and not by `all`,
# without the precompiled header, which would hide a missing include.
function(lint_headers target)
  cmake_parse_arguments(ARG "" "ROOT;LANGUAGE" "LIBS;HEADERS" ${ARGN})
  set(sources "")
  foreach(header IN LISTS ARG_HEADERS)
    string(MAKE_C_IDENTIFIER "${header}" id)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${target}/${id}.${ARG_LANGUAGE}")
    # The declaration keeps a C file of macros only from being empty.
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n#include \"${header}\"\nextern int ${id};\n")
    list(APPEND sources "${source}")
  endforeach()
  if(sources)
    add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources})
    target_include_directories(${target} PRIVATE "${ARG_ROOT}")
    target_compile_options(${target} PRIVATE -O0)
    target_link_libraries(${target} PRIVATE ${ARG_LIBS})
    if(ARG_LANGUAGE STREQUAL "c")  # mortise_flags has options that are for C++ only
      target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Werror)
    else()
      target_link_libraries(${target} PRIVATE mortise_flags)
    endif()
    set(header_targets ${header_targets} ${target} PARENT_SCOPE)
  endif()
endfunction()

set(header_targets "")
set(sdk_root "${PROJECT_SOURCE_DIR}/sdk/include")
file(GLOB_RECURSE c_headers RELATIVE "${sdk_root}" CONFIGURE_DEPENDS "${sdk_root}/*.h")
file(GLOB_RECURSE cpp_headers RELATIVE "${sdk_root}" CONFIGURE_DEPENDS "${sdk_root}/*.hpp")
list(REMOVE_ITEM cpp_headers mortise/cpp/torch.hpp)  # needs libtorch: tests/sdk/torch_vanilla.cpp compiles it
lint_headers(lint_headers_c ROOT "${sdk_root}" LANGUAGE c HEADERS ${c_headers})
lint_headers(lint_headers_sdk ROOT "${sdk_root}" LANGUAGE cpp HEADERS ${c_headers} ${cpp_headers})
foreach(room foundation plugin text config checkpoint experience model dist generate learn train)
  if(TARGET mortise_${room})
    file(GLOB_RECURSE headers RELATIVE "${PROJECT_SOURCE_DIR}/core" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/core/${room}/*.h")
    lint_headers(lint_headers_${room} ROOT "${PROJECT_SOURCE_DIR}/core" LANGUAGE cpp LIBS mortise_${room} HEADERS ${headers})
  endif()
endforeach()

# -k 0: name every header at fault, not the first. Serial: it uses all cores itself.
add_test(NAME lint_headers_alone COMMAND "${CMAKE_MAKE_PROGRAM}" -C "${PROJECT_BINARY_DIR}" -k 0 ${header_targets})
set_tests_properties(lint_headers_alone PROPERTIES TIMEOUT 1800 RUN_SERIAL ON)

# The same way of compiling must refuse a header that lacks an include and one without a guard, and take a good one.
foreach(sample good lacks_include no_guard)
  lint_headers(lint_sample_${sample} ROOT "${CMAKE_CURRENT_SOURCE_DIR}/samples" LANGUAGE cpp HEADERS ${sample}.h)
  add_test(NAME lint_headers_alone_selftest_${sample} COMMAND "${CMAKE_MAKE_PROGRAM}" -C "${PROJECT_BINARY_DIR}" lint_sample_${sample})
  set_tests_properties(lint_headers_alone_selftest_${sample} PROPERTIES RUN_SERIAL ON)
endforeach()
set_tests_properties(lint_headers_alone_selftest_lacks_include PROPERTIES PASS_REGULAR_EXPRESSION "lacks_include.h:[0-9:]+ error: .*string")
set_tests_properties(lint_headers_alone_selftest_no_guard PROPERTIES PASS_REGULAR_EXPRESSION "no_guard.h:[0-9:]+ error: redefinition")
