# What `cmake --install` lays down:
#
#   bin/remat    include/remat.h    lib/libremat.a [libremat.so]    lib/pkgconfig/remat.pc    lib/cmake/Remat/*.cmake
#   lib/remat/module.list [remat_mpi.so, remat_gloo.so: loaded by programs that ask for them, dist/module.h]
#
# A static archive does not remember what it needs, so both ways of finding Remat hand its libraries on. They are spelled
# out (-lopenblas) rather than delegated to the libraries' own .pc files: Debian's openblas.pc asks for -lgfortran when
# linking statically, which only Fortran users have.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Remat)

install(FILES engine/remat.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(remat_installed remat)
if(REMAT_SHARED)
  list(APPEND remat_installed remat_shared)
endif()
install(TARGETS ${remat_installed} EXPORT Remat ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT Remat NAMESPACE Remat:: DESTINATION ${package_dir})
if(TARGET remat_program)
  install(TARGETS remat_program DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(FILES dist/module.list DESTINATION ${CMAKE_INSTALL_LIBDIR}/remat)
foreach(module mpi gloo)
  if(TARGET remat_${module})
    install(TARGETS remat_${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/remat)
  endif()
endforeach()

# ---- CMake package: the imported targets that the exported ones name, made again on the user's machine. --------------
set(REMAT_PARTS "")
foreach(part OPENBLAS JEMALLOC)
  if(REMAT_HAVE_${part})
    string(TOLOWER ${part} module)
    string(APPEND REMAT_PARTS "pkg_check_modules(${part} REQUIRED QUIET IMPORTED_TARGET ${module})\n")
  endif()
endforeach()
configure_package_config_file(cmake/RematConfig.cmake.in ${CMAKE_BINARY_DIR}/RematConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/RematConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/RematConfig.cmake ${CMAKE_BINARY_DIR}/RematConfigVersion.cmake
        DESTINATION ${package_dir})

# ---- pkg-config. With libremat.so installed the needs are private, but for jemalloc; with the archive alone everybody needs them. -------
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" to_prefix ${to_prefix})
set(needs "")
foreach(part OPENBLAS JEMALLOC)
  if(REMAT_HAVE_${part})
    list(APPEND needs ${${part}_LDFLAGS})
  endif()
endforeach()
if(REMAT_HAVE_CUDA)
  list(APPEND needs ${CUDART_STATIC_LIBRARY} -lrt)
endif()
foreach(name ${OpenMP_C_LIB_NAMES})
  list(APPEND needs -l${name})
endforeach()
list(APPEND needs ${REMAT_SANITIZE_FLAGS} ${CMAKE_THREAD_LIBS_INIT})
foreach(name ${CMAKE_DL_LIBS} m)
  list(APPEND needs -l${name})
endforeach()
list(JOIN needs " " needs)
set(REMAT_LIBS_PUBLIC "")
set(REMAT_LIBS_PRIVATE "")
if(REMAT_SHARED)
  set(REMAT_LIBS_PRIVATE ${needs})
  if(REMAT_HAVE_JEMALLOC) # ahead of libc: library.cmake
    list(JOIN JEMALLOC_LDFLAGS " " jemalloc)
    set(REMAT_LIBS_PUBLIC "-Wl,--push-state,--no-as-needed ${jemalloc} -Wl,--pop-state")
  endif()
else()
  set(REMAT_LIBS_PUBLIC ${needs})
endif()
configure_file(cmake/remat.pc.in ${CMAKE_BINARY_DIR}/remat.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/remat.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
