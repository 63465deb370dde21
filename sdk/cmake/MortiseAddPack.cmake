# mortise_add_pack(NAME SOURCES file ... [ID id] [VERSION v] [LIBS target ...] [NEEDS lib.so.N ...])
#
# Builds NAME.so, a Mortise pack: everything hidden but mortise_pack_v0, never unloaded, all symbols bound on load, with
# its metadata as an ELF note. The note is made by loading the freshly linked library once (mortise_note) and linking
# again. ID is the pack's reverse-domain id (default: NAME), VERSION its semantic version (default: the project's).
# LIBS are linked in, statically if the pack is to stay portable; a shared library other than the C and C++ runtimes
# must be named in NEEDS, or the host refuses the pack. Output: MORTISE_PACK_DIR, by default BINARY_DIR/lib/mortise/packs.
include_guard(GLOBAL)

function(mortise_add_pack name)
  cmake_parse_arguments(ARG "" "ID;VERSION" "SOURCES;LIBS;NEEDS" ${ARGN})
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
  file(CONFIGURE OUTPUT "${work}/exports.map" CONTENT "{ global: mortise_pack_v0; local: *; };\n")

  add_library(${name}_objects OBJECT ${ARG_SOURCES})
  target_link_libraries(${name}_objects PRIVATE mortise::sdk ${ARG_LIBS})
  target_compile_features(${name}_objects PRIVATE cxx_std_17)
  target_compile_definitions(${name}_objects PRIVATE MORTISE_PACK_ID="${ARG_ID}" MORTISE_PACK_VERSION="${ARG_VERSION}")
  # no-math-errno and no-trapping-math let selects become blends; neither changes a value.
  target_compile_options(${name}_objects PRIVATE -fno-math-errno -fno-trapping-math)
  set_target_properties(${name}_objects PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)

  add_library(${name}_fresh MODULE $<TARGET_OBJECTS:${name}_objects>)
  add_library(${name} MODULE $<TARGET_OBJECTS:${name}_objects> "${work}/note.c")
  foreach(target ${name}_fresh ${name})
    target_link_libraries(${target} PRIVATE ${ARG_LIBS})
    target_link_options(${target} PRIVATE "LINKER:--version-script=${work}/exports.map" "LINKER:-z,nodelete"
      "LINKER:-z,now" "LINKER:-z,relro" "LINKER:-z,noexecstack" "LINKER:--as-needed")
    set_target_properties(${target} PROPERTIES PREFIX "" LINK_DEPENDS "${work}/exports.map" LINKER_LANGUAGE CXX
      SKIP_BUILD_RPATH ON)
  endforeach()
  set_target_properties(${name}_fresh PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${work}" OUTPUT_NAME fresh)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${output}" OUTPUT_NAME "${name}")

  set(needs "")
  foreach(lib IN LISTS ARG_NEEDS)
    list(APPEND needs --need "${lib}")
  endforeach()
  add_custom_command(OUTPUT "${work}/note.c"
    # detect_leaks: under ASan the tool, which ends at once, would be blamed for what the pack keeps for ever
    COMMAND ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0 "$<TARGET_FILE:mortise::note>" "$<TARGET_FILE:${name}_fresh>"
      "compiler=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" "cpu=${CMAKE_SYSTEM_PROCESSOR}"
      "system=${CMAKE_SYSTEM_NAME}" ${needs} > "${work}/note.c.new"
    COMMAND ${CMAKE_COMMAND} -E rename "${work}/note.c.new" "${work}/note.c"
    DEPENDS ${name}_fresh mortise::note VERBATIM COMMENT "Metadata note of ${name}")
  install(TARGETS ${name} LIBRARY DESTINATION lib/mortise/packs COMPONENT packs)
endfunction()
