# mortise_add_pack(NAME SOURCES file ... [ID id] [VERSION v] [LIBS target ...] [NEEDS lib.so.N ...] [TARGET_MINOR n]
#   [MIN_HOST_MINOR n] [TORCH])
# mortise_add_pack_test(NAME SOURCES file ... [LIBS target ...])
#
# Builds NAME.so, a Mortise pack: everything hidden but mortise_pack_v1, never unloaded, all symbols bound on load, with
# its metadata as an ELF note. The note is made by loading the freshly linked library once (mortise_note) and linking
# again. ID is the pack's reverse-domain id (default: NAME), VERSION its semantic version (default: the project's).
# The target NAME.mpack, which is not a part of `all`, makes the archive ID-VERSION.mpack next to NAME.so with the program
# `mortise`; it takes pack.toml, README.md, LICENSE and tests/ from the source folder.
# SOURCES may be C, C++ and CUDA; for CUDA the project enables the language and gives LIBS CUDA::cudart_static. The note
# of a pack with CUDA sources names the toolkit's version.
# LIBS are linked in, statically if the pack is to stay portable; a shared library other than the C and C++ runtimes
# must be named in NEEDS, or the host refuses the pack. Output: MORTISE_PACK_DIR, by default BINARY_DIR/lib/mortise/packs.
# TARGET_MINOR is the minor of the ABI that the sources use, the oldest unless given (mortise/abi.h). MIN_HOST_MINOR is
# that of the oldest host that can run the pack, 0 unless given: older hosts refuse it.
# TORCH makes a torch-locked pack (mortise/cpp/torch.hpp): built against the libtorch in MORTISE_TORCH_DIR (a variable or
# an environment variable: the folder with include/ and lib/; else that of python3's torch), whose exact version goes
# into the note; only a program with that very version loads it.
# mortise_add_pack_test makes a program of SOURCES (mortise/testing/*.h) and a ctest entry that runs it with the pack's
# path. C-only projects may use both.
include_guard(GLOBAL)

# Sets torch_dir and torch_version in the caller.
function(_mortise_find_torch name)
  set(dir "${MORTISE_TORCH_DIR}")
  if(NOT dir)
    set(dir "$ENV{MORTISE_TORCH_DIR}")
  endif()
  if(NOT dir)
    execute_process(COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(header "${dir}/include/torch/headeronly/version.h")
  if(NOT dir OR NOT EXISTS "${header}" OR NOT EXISTS "${dir}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "mortise_add_pack(${name} TORCH): no libtorch in '${dir}'. Set MORTISE_TORCH_DIR to the folder that "
      "holds include/ and lib/libtorch_cpu.so of the libtorch that your Mortise program uses")
  endif()
  set(version "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${header}" line REGEX "^#define TORCH_VERSION_${part} [0-9]+")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND version "${number}")
  endforeach()
  list(JOIN version "." version)
  set(torch_dir "${dir}" PARENT_SCOPE)
  set(torch_version "${version}" PARENT_SCOPE)
endfunction()

function(mortise_add_pack name)
  cmake_parse_arguments(ARG "TORCH" "ID;VERSION;TARGET_MINOR;MIN_HOST_MINOR" "SOURCES;LIBS;NEEDS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "mortise_add_pack(${name}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_ID)
    set(ARG_ID "${name}")
  endif()
  if(NOT ARG_VERSION)
    set(ARG_VERSION "${PROJECT_VERSION}")
  endif()
  if(NOT ARG_VERSION MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+([-+][0-9A-Za-z.+-]+)?$")
    message(FATAL_ERROR "mortise_add_pack(${name}): VERSION '${ARG_VERSION}' is not a semantic version such as 1.0.0")
  endif()
  set(output "${MORTISE_PACK_DIR}")
  if(NOT output)
    set(output "${CMAKE_BINARY_DIR}/lib/mortise/packs")
  endif()
  set(work "${CMAKE_CURRENT_BINARY_DIR}/${name}.pack")
  set(exports "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/pack.map")

  add_library(${name}_objects OBJECT ${ARG_SOURCES})
  target_link_libraries(${name}_objects PRIVATE mortise::sdk ${ARG_LIBS})
  if(CMAKE_CXX_COMPILER_LOADED)
    target_compile_features(${name}_objects PRIVATE cxx_std_17)
    set(language CXX)
  else()
    set(language C)
  endif()
  target_compile_definitions(${name}_objects PRIVATE MORTISE_PACK_ID="${ARG_ID}" MORTISE_PACK_VERSION="${ARG_VERSION}")
  if(ARG_TARGET_MINOR)
    target_compile_definitions(${name}_objects PRIVATE MORTISE_TARGET_MINOR=${ARG_TARGET_MINOR})
  endif()
  if(ARG_MIN_HOST_MINOR)
    target_compile_definitions(${name}_objects PRIVATE MORTISE_MIN_HOST_MINOR=${ARG_MIN_HOST_MINOR})
  endif()
  # no-math-errno and no-trapping-math let selects become blends; neither changes a value.
  foreach(option -fno-math-errno -fno-trapping-math)
    target_compile_options(${name}_objects PRIVATE
      $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${option}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${option}>)
  endforeach()
  if(CMAKE_CUDA_COMPILER_LOADED)
    target_compile_features(${name}_objects PRIVATE cuda_std_17)
  endif()
  set_target_properties(${name}_objects PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)

  set(build_facts "compiler=${CMAKE_${language}_COMPILER_ID} ${CMAKE_${language}_COMPILER_VERSION}"
    "cpu=${CMAKE_SYSTEM_PROCESSOR}" "system=${CMAKE_SYSTEM_NAME}")
  foreach(source IN LISTS ARG_SOURCES)
    get_source_file_property(source_language "${source}" LANGUAGE)
    if(source MATCHES "\\.cu$" OR source_language STREQUAL "CUDA")
      string(REGEX MATCH "^[0-9]+\\.[0-9]+" cuda_version "${CMAKE_CUDA_COMPILER_VERSION}")
      list(APPEND build_facts "cuda=${cuda_version}")
      break()
    endif()
  endforeach()
  set(run_with "")
  if(ARG_TORCH)
    _mortise_find_torch(${name})
    target_include_directories(${name}_objects SYSTEM PRIVATE "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
    list(APPEND ARG_LIBS "${torch_dir}/lib/libtorch_cpu.so" "${torch_dir}/lib/libc10.so")
    list(APPEND build_facts "torch=${torch_version}")
    # No run path in the pack: in a run the program's own libtorch is there already. Whoever else loads it is told.
    set(run_with "LD_LIBRARY_PATH=${torch_dir}/lib")
  endif()

  add_library(${name}_fresh MODULE $<TARGET_OBJECTS:${name}_objects>)
  add_library(${name} MODULE $<TARGET_OBJECTS:${name}_objects> "${work}/note.c")
  foreach(target ${name}_fresh ${name})
    target_link_libraries(${target} PRIVATE ${ARG_LIBS})
    target_link_options(${target} PRIVATE "LINKER:--version-script=${exports}" "LINKER:-z,nodelete"
      "LINKER:-z,now" "LINKER:-z,relro" "LINKER:-z,noexecstack" "LINKER:--as-needed")
    set_target_properties(${target} PROPERTIES PREFIX "" LINK_DEPENDS "${exports}" LINKER_LANGUAGE ${language}
      SKIP_BUILD_RPATH ON)
  endforeach()
  set_target_properties(${name}_fresh PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${work}" OUTPUT_NAME fresh)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${output}" OUTPUT_NAME "${name}"
    MORTISE_RUN_WITH "${run_with}")

  set(needs "")
  foreach(lib IN LISTS ARG_NEEDS)
    list(APPEND needs --need "${lib}")
  endforeach()
  add_custom_command(OUTPUT "${work}/note.c"
    # detect_leaks: under ASan the tool, which ends at once, would be blamed for what the pack keeps for ever
    COMMAND ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0 ${run_with} "$<TARGET_FILE:mortise::note>"
      "$<TARGET_FILE:${name}_fresh>" ${build_facts} ${needs} > "${work}/note.c.new"
    COMMAND ${CMAKE_COMMAND} -E rename "${work}/note.c.new" "${work}/note.c"
    DEPENDS ${name}_fresh mortise::note VERBATIM COMMENT "Metadata note of ${name}")
  add_custom_target(${name}.mpack
    COMMAND mortise pack build "$<TARGET_FILE:${name}>" "${CMAKE_CURRENT_SOURCE_DIR}"
      -o "${output}/${ARG_ID}-${ARG_VERSION}.mpack"
    VERBATIM COMMENT "Archive of ${name}")
  add_dependencies(${name}.mpack ${name})
  if(output STREQUAL "${CMAKE_BINARY_DIR}/lib/mortise/packs")  # what was put elsewhere is for tests
    install(TARGETS ${name} LIBRARY DESTINATION lib/mortise/packs COMPONENT packs)
  endif()
endfunction()

function(mortise_add_pack_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS OR NOT TARGET ${name})
    message(FATAL_ERROR "mortise_add_pack_test(${name}): name a pack of mortise_add_pack() and SOURCES; unknown: '${ARG_UNPARSED_ARGUMENTS}'")
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE mortise::sdk ${ARG_LIBS} ${CMAKE_DL_LIBS} m)
  if(CMAKE_CXX_COMPILER_LOADED)
    target_compile_features(${name}_test PRIVATE cxx_std_17)
  endif()
  add_dependencies(${name}_test ${name})
  add_test(NAME ${name} COMMAND ${name}_test "$<TARGET_FILE:${name}>")
  get_target_property(run_with ${name} MORTISE_RUN_WITH)
  if(run_with)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${run_with}")
  endif()
endfunction()
