/* A preloaded library that makes writes, syncs and truncations of chosen files fail. The file named by WINDLASS_FAULT says
   which, one per line: a call, the suffix of the file's name, and the error number. Each failure is appended to a file of
   that name with ".struck" added. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Plain system calls, because the functions below replace those of the C library. */
static long slurp(const char *path, char *into, size_t size) {
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    long got = syscall(SYS_read, fd, into, size - 1);
    syscall(SYS_close, fd);
    into[got < 0 ? 0 : got] = 0;
    return got;
}

static void note(const char *control, const char *call, const char *name) {
    char path[4096], line[4200];
    snprintf(path, sizeof path, "%s.struck", control);
    int length = snprintf(line, sizeof line, "%s %s\n", call, name);
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return;
    syscall(SYS_write, fd, line, length);
    syscall(SYS_close, fd);
}

static int fails(const char *call, int fd) {
    const char *control = getenv("WINDLASS_FAULT");
    char rules[1024], link[64], name[4096];
    int before = errno;
    if (!control || slurp(control, rules, sizeof rules) <= 0) { errno = before; return 0; }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    errno = before;
    if (length < 0) return 0;
    name[length] = 0;
    char *rest = 0;
    for (char *line = strtok_r(rules, "\n", &rest); line; line = strtok_r(0, "\n", &rest)) {
        char what[32], end[64];
        int error;
        if (sscanf(line, "%31s %63s %d", what, end, &error) != 3 || strcmp(what, call)) continue;
        size_t tail = strlen(end);
        if ((size_t)length < tail || strcmp(name + length - tail, end)) continue;
        note(control, call, name);
        errno = error;
        return 1;
    }
    return 0;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *from, size_t size) {
    if (fails("write", fd)) return -1;
    REAL(write); return real(fd, from, size);
}
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    if (fails("write", fd)) return -1;
    REAL(pwrite); return real(fd, from, size, at);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
    if (fails("write", fd)) return -1;
    REAL(pwrite64); return real(fd, from, size, at);
}
int fsync(int fd) {
    if (fails("sync", fd)) return -1;
    REAL(fsync); return real(fd);
}
int fdatasync(int fd) {
    if (fails("sync", fd)) return -1;
    REAL(fdatasync); return real(fd);
}
int ftruncate(int fd, off_t size) {
    if (fails("truncate", fd)) return -1;
    REAL(ftruncate); return real(fd, size);
}
int ftruncate64(int fd, off64_t size) {
    if (fails("truncate", fd)) return -1;
    REAL(ftruncate64); return real(fd, size);
}
