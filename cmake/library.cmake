# The library. The folders' object files go into one archive, libremat.a; with REMAT_SHARED=ON also into libremat.so, which
# exports remat_* alone. Inside this build everything links the target `remat` (tests reach rm_* through it); an installed
# Remat is found as Remat::remat (CMake) or `remat` (pkg-config): see install.cmake.
set(remat_objects $<TARGET_OBJECTS:remat_engine> $<TARGET_OBJECTS:remat_memory> $<TARGET_OBJECTS:remat_ops>)
foreach(isa ${remat_isas})
  list(APPEND remat_objects $<TARGET_OBJECTS:remat_cell_${isa}>)
endforeach()

set(remat_needs OpenMP::OpenMP_C m)
foreach(part OPENBLAS JEMALLOC)
  if(REMAT_HAVE_${part})
    list(APPEND remat_needs PkgConfig::${part})
  endif()
endforeach()

add_library(remat STATIC ${remat_objects})
target_include_directories(remat PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
target_link_libraries(remat PRIVATE ${remat_needs})
target_link_libraries(remat INTERFACE $<BUILD_INTERFACE:OpenMP::OpenMP_C>) # tests and tools use OpenMP themselves

if(REMAT_SHARED)
  add_library(remat_shared SHARED ${remat_objects})
  set(version_script ${CMAKE_CURRENT_LIST_DIR}/exports.map)
  set_target_properties(remat_shared PROPERTIES OUTPUT_NAME remat VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR} EXPORT_NAME shared LINK_DEPENDS ${version_script})
  target_include_directories(remat_shared INTERFACE $<INSTALL_INTERFACE:include>)
  target_link_libraries(remat_shared PRIVATE ${remat_needs})
  target_link_options(remat_shared PRIVATE -Wl,--version-script=${version_script})
endif()
