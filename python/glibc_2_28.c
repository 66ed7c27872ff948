/* glibc_2_28.c: lets the library in a wheel run from glibc 2.28 on (manylinux_2_28), although a newer one built it.
 *
 * The linker gives each function that is called its newest version, which an older glibc lacks. The functions here, whose
 * newest versions came after 2.28, take their place inside the library (exports.map hides them) and jump to the versions
 * that 2.28 has. tests/wheel.sh notices functions that are missing. */
#include <features.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#if defined(__GLIBC__) && defined(__x86_64__)
#define JUMP "jmp"
#define BASE "GLIBC_2.2.5" /* the first glibc for this processor */
#define NPTL "GLIBC_2.3.3"
#define ISOC99 "GLIBC_2.7"
#define STAT_VERSION 1
#elif defined(__GLIBC__) && defined(__aarch64__)
#define JUMP "b"
#define BASE "GLIBC_2.17"
#define NPTL BASE
#define ISOC99 BASE
#define STAT_VERSION 0
#endif

#ifdef JUMP
#define AS(name, target, version)                                                                                      \
    __asm__(".text\n"                                                                                                  \
            ".globl " #name "\n"                                                                                       \
            ".type " #name ", %function\n" #name ": " JUMP " old_" #name "\n"                                          \
            ".symver old_" #name ", " #target "@" version "\n");
#define OLD(name) AS(name, name, BASE)

OLD(exp) OLD(log) OLD(pow) /* 2.29 */
OLD(pthread_sigmask)       /* 2.32, and 2.34 for the rest of libpthread and libdl, which moved to libc */
OLD(pthread_attr_getstacksize) OLD(pthread_attr_setstacksize) OLD(pthread_create) OLD(pthread_detach)
OLD(pthread_getcpuclockid) OLD(pthread_join) OLD(pthread_mutex_trylock) OLD(pthread_once)
AS(pthread_condattr_setclock, pthread_condattr_setclock, NPTL) AS(pthread_tryjoin_np, pthread_tryjoin_np, NPTL)
OLD(dladdr) OLD(dlclose) OLD(dlerror) OLD(dlopen) OLD(dlsym)
AS(__isoc23_strtol, strtol, BASE) AS(__isoc23_strtoll, strtoll, BASE) /* 2.38: they also read 0b10 */
AS(__isoc23_strtoul, strtoul, BASE) AS(__isoc23_strtoull, strtoull, BASE) AS(__isoc23_sscanf, __isoc99_sscanf, ISOC99)

/* 2.33. Before, they were inline functions that called these. */
int __xstat(int, const char *, void *);
int __lxstat(int, const char *, void *);
int __fxstat(int, int, void *);
int stat(const char *path, void *result) { return __xstat(STAT_VERSION, path, result); }
int lstat(const char *path, void *result) { return __lxstat(STAT_VERSION, path, result); }
int fstat(int file, void *result) { return __fxstat(STAT_VERSION, file, result); }

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); } /* 2.30 */
#endif
