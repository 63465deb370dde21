# find_package(mortise-sdk) gives mortise::sdk (headers), mortise::note (the note maker) and mortise_add_pack().
include("${CMAKE_CURRENT_LIST_DIR}/mortise-sdk-targets.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/MortiseAddPack.cmake")
