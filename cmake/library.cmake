# The library. The folders' object files go into one archive, libremat.a; with REMAT_SHARED=ON also into libremat.so, which
# exports remat_*, and beside it only what modules call (dist/module.list). Inside this build everything links the target
# `remat` (tests reach rm_* through it); an installed Remat is found as Remat::remat (CMake) or `remat` (pkg-config): see
# install.cmake.
set(remat_objects $<TARGET_OBJECTS:remat_engine> $<TARGET_OBJECTS:remat_memory> $<TARGET_OBJECTS:remat_ops>
    $<TARGET_OBJECTS:remat_ranks>)
foreach(isa ${remat_isas})
  list(APPEND remat_objects $<TARGET_OBJECTS:remat_cell_${isa}>)
endforeach()

set(remat_needs OpenMP::OpenMP_C Threads::Threads ${CMAKE_DL_LIBS} m)
foreach(part OPENBLAS JEMALLOC)
  if(REMAT_HAVE_${part})
    list(APPEND remat_needs PkgConfig::${part})
  endif()
endforeach()

# Kernels, and the CUDA runtime that launches them. It is in the program; cuBLAS is opened when it runs (cuda/library.c).
if(REMAT_HAVE_CUDA)
  remat_cuda_objects(cuda_objects)
  add_custom_target(remat_cuda_kernels DEPENDS ${cuda_objects})
  list(APPEND remat_objects ${cuda_objects})
  list(APPEND remat_needs ${CUDART_STATIC_LIBRARY} ${CMAKE_DL_LIBS} rt)
endif()

# A program that the archive becomes part of shows modules what they call (dist/module.h).
set(module_list remat/module.list) # in the installation's folder of libraries
add_library(remat STATIC ${remat_objects})
if(REMAT_HAVE_CUDA)
  add_dependencies(remat remat_cuda_kernels)
endif()
target_include_directories(remat PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
target_link_libraries(remat PRIVATE ${remat_needs})
include(GNUInstallDirs)
target_link_options(remat INTERFACE
                    $<INSTALL_INTERFACE:LINKER:--dynamic-list=$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}/${module_list}>)
target_link_libraries(remat INTERFACE $<BUILD_INTERFACE:OpenMP::OpenMP_C>) # tests and tools use OpenMP themselves

if(REMAT_SHARED)
  add_library(remat_shared SHARED ${remat_objects})
  add_dependencies(remat_shared remat)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dist/module.list)
  file(STRINGS ${CMAKE_SOURCE_DIR}/dist/module.list REMAT_MODULES_CALL REGEX "rm_")
  list(JOIN REMAT_MODULES_CALL "\n" REMAT_MODULES_CALL)
  set(version_script ${CMAKE_BINARY_DIR}/exports.map)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/exports.map.in ${version_script} @ONLY)
  set_target_properties(remat_shared PROPERTIES OUTPUT_NAME remat VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR} EXPORT_NAME shared LINK_DEPENDS ${version_script})
  target_include_directories(remat_shared INTERFACE $<INSTALL_INTERFACE:include>)
  target_link_libraries(remat_shared PRIVATE ${remat_needs})
  # A program that found jemalloc behind libc would have malloc from one and C++'s new from the other; the module for Gloo
  # brings C++. So the program itself asks for it, ahead of libc.
  if(REMAT_HAVE_JEMALLOC)
    target_link_libraries(remat_shared INTERFACE -Wl,--push-state,--no-as-needed PkgConfig::JEMALLOC -Wl,--pop-state)
  endif()
  target_link_options(remat_shared PRIVATE -Wl,--version-script=${version_script})
endif()
