/* Stands between a process and its disk: counts the changes below a directory, and lets the n-th go wrong.

Preloaded (LD_PRELOAD), so that it sees the calls of all threads and of TensorFlow's C++ code too. Does nothing before
`disk_arm` is called. A write counts twice, for its first half and for its second, so that it can also end between them.
What a FILE buffers is no change before it leaves the buffer. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { REMOVES = 0, TAKES_SPACE = 1 };

static char directory[PATH_MAX];
static size_t length; /* 0: not armed */
static long at;
static int fault, lasts, record = -1;
static char wanted[PATH_MAX]; /* part of the names of the changes that count; empty: all do */
static atomic_long count;

/* Counts from now on. `number` is the change that goes wrong, from 1; 0 for none. `what` is an error number, or a
negated signal; an error is that of every later change too if it `goes_on`. ENOSPC never is that of a removal. The
name of each change goes to the descriptor `log`, a line each. Only those count whose name has `part` in it. */
void disk_arm(const char *below, long number, int what, int goes_on, int log, const char *part)
{
    strncpy(directory, below, sizeof directory - 1);
    strncpy(wanted, part, sizeof wanted - 1);
    at = number, fault = what, lasts = goes_on, record = log;
    atomic_store(&count, 0);
    length = strlen(directory);
}

#define REAL(name, ...)                                                                                                \
    ({                                                                                                                 \
        static typeof(&name) call;                                                                                     \
        if (!call)                                                                                                     \
            call = (typeof(&name))dlsym(RTLD_NEXT, #name);                                                             \
        call(__VA_ARGS__);                                                                                             \
    })

/* Counts a change; returns the error that it ends with, 0 for none. Does not return if the process is killed. */
static int strikes(const char *name, const char *path, int takes_space)
{
    char line[PATH_MAX + 64];
    int size = snprintf(line, sizeof line, "%s %s\n", name, path + (path[length] ? length + 1 : length));
    if (!strstr(line, wanted))
        return 0;
    long number = atomic_fetch_add(&count, 1) + 1;
    if (record >= 0)
        syscall(SYS_write, record, line, size);
    if (at == 0 || number < at || (number > at && !lasts))
        return 0;
    if (fault < 0) {
        syscall(SYS_kill, getpid(), -fault);
        while (fault == -SIGKILL)
            pause();
        return 0;
    }
    return fault == ENOSPC && !takes_space ? 0 : fault;
}

static int is_below(char *path)
{
    if (strncmp(path, directory, length) || (path[length] && path[length] != '/'))
        path[0] = 0;
    return path[0];
}

static void read_descriptor(int descriptor, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
}

/* Whether a descriptor is of a file below the directory; `path` is then its path, else empty. */
static int finds_descriptor(int descriptor, char *path)
{
    if (!length)
        return 0;
    read_descriptor(descriptor, path);
    return is_below(path);
}

/* The same of a name, which is relative to the descriptor `folder`. */
static int finds(int folder, const char *name, char *path)
{
    if (!length)
        return 0;
    if (name[0] != '/' && folder == AT_FDCWD && !getcwd(path, PATH_MAX))
        return 0;
    if (name[0] != '/' && folder != AT_FDCWD)
        read_descriptor(folder, path);
    size_t end = name[0] == '/' ? 0 : strlen(path);
    snprintf(path + end, PATH_MAX - end, "%s%s", end ? "/" : "", name);
    return is_below(path);
}

/* Ends the calling function with `failed` if this change goes wrong. */
#define CHANGE(found, name, takes_space, failed)                                                                       \
    char path[PATH_MAX];                                                                                               \
    path[0] = 0;                                                                                                       \
    if (found) {                                                                                                       \
        int error = strikes(name, path, takes_space);                                                                  \
        if (error) {                                                                                                   \
            errno = error;                                                                                             \
            return failed;                                                                                             \
        }                                                                                                              \
    }

#define OPENS(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE(flags)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

#define OPEN(name)                                                                                                     \
    int name(const char *file, int flags, ...)                                                                         \
    {                                                                                                                  \
        MODE(flags)                                                                                                    \
        CHANGE(OPENS(flags) && finds(AT_FDCWD, file, path), "open", access(path, F_OK) != 0, -1)                                   \
        return REAL(name, file, flags, mode);                                                                          \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *file, int flags, ...)                                                             \
    {                                                                                                                  \
        MODE(flags)                                                                                                    \
        CHANGE(OPENS(flags) && finds(folder, file, path), "open", access(path, F_OK) != 0, -1)                                     \
        return REAL(name, folder, file, flags, mode);                                                                  \
    }
OPENAT(openat)
OPENAT(openat64)

#define CREAT(name)                                                                                                    \
    int name(const char *file, mode_t mode)                                                                            \
    {                                                                                                                  \
        CHANGE(finds(AT_FDCWD, file, path), "open", access(path, F_OK) != 0, -1)                                                   \
        return REAL(name, file, mode);                                                                                 \
    }
CREAT(creat)
CREAT(creat64)

#define FOPEN(name)                                                                                                    \
    FILE *name(const char *file, const char *mode)                                                                     \
    {                                                                                                                  \
        CHANGE(strpbrk(mode, "wa+") && finds(AT_FDCWD, file, path), "open", access(path, F_OK) != 0, NULL)                         \
        return REAL(name, file, mode);                                                                                 \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* The second half of a write: what was done before stays done, and is what the call returns. */
#define SECOND_HALF(call)                                                                                              \
    if (path[0] && done == (ssize_t)half && half < size) {                                                             \
        int error = strikes("write half of", path, TAKES_SPACE);                                                       \
        ssize_t more = error ? -1 : call;                                                                              \
        done += more < 0 ? 0 : more;                                                                                   \
        errno = error ? error : errno;                                                                                 \
    }

ssize_t write(int descriptor, const void *data, size_t size)
{
    CHANGE(finds_descriptor(descriptor, path), "write", TAKES_SPACE, -1)
    size_t half = path[0] && size > 1 ? size / 2 : size;
    ssize_t done = REAL(write, descriptor, data, half);
    SECOND_HALF(REAL(write, descriptor, (const char *)data + half, size - half))
    return done;
}

#define PWRITE(name, offset_t)                                                                                         \
    ssize_t name(int descriptor, const void *data, size_t size, offset_t offset)                                       \
    {                                                                                                                  \
        CHANGE(finds_descriptor(descriptor, path), "write", TAKES_SPACE, -1)                                           \
        size_t half = path[0] && size > 1 ? size / 2 : size;                                                           \
        ssize_t done = REAL(name, descriptor, data, half, offset);                                                     \
        SECOND_HALF(REAL(name, descriptor, (const char *)data + half, size - half, offset + (offset_t)half))           \
        return done;                                                                                                   \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int descriptor, const struct iovec *parts, int number)
{
    CHANGE(finds_descriptor(descriptor, path), "write", TAKES_SPACE, -1)
    return REAL(writev, descriptor, parts, number);
}

#define SENDFILE(name, offset_t)                                                                                       \
    ssize_t name(int descriptor, int source, offset_t *offset, size_t size)                                            \
    {                                                                                                                  \
        CHANGE(finds_descriptor(descriptor, path), "write", TAKES_SPACE, -1)                                           \
        return REAL(name, descriptor, source, offset, size);                                                           \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

ssize_t copy_file_range(int source, off64_t *start, int descriptor, off64_t *offset, size_t size, unsigned flags)
{
    CHANGE(finds_descriptor(descriptor, path), "write", TAKES_SPACE, -1)
    return REAL(copy_file_range, source, start, descriptor, offset, size, flags);
}

/* Whether a FILE has something for the disk, more than its buffer has place for `size` bytes if that is given. */
static int overflows(FILE *file, size_t size)
{
    size_t held = __fpending(file), place = __fbufsize(file);
    return size ? held + size >= (place ? place : BUFSIZ) : held > 0;
}

size_t fwrite(const void *data, size_t unit, size_t number, FILE *file)
{
    size_t size = unit * number;
    CHANGE(size && finds_descriptor(fileno(file), path) && overflows(file, size), "write", TAKES_SPACE, 0)
    if (!path[0] || unit != 1 || size < 2 || !overflows(file, size))
        return REAL(fwrite, data, unit, number, file);
    size_t half = size / 2;
    ssize_t done = REAL(fwrite, data, 1, half, file);
    REAL(fflush, file);
    SECOND_HALF((ssize_t)REAL(fwrite, (const char *)data + half, 1, size - half, file))
    return done;
}

int fflush(FILE *file)
{
    CHANGE(file && finds_descriptor(fileno(file), path) && overflows(file, 0), "write", TAKES_SPACE, EOF)
    return REAL(fflush, file);
}

int fclose(FILE *file)
{
    char path[PATH_MAX];
    int error = 0;
    if (finds_descriptor(fileno(file), path) && overflows(file, 0))
        error = strikes("write", path, TAKES_SPACE);
    if (error)
        __fpurge(file); /* it closes in any case, and what it holds is lost */
    int closed = REAL(fclose, file);
    if (error)
        errno = error;
    return error ? EOF : closed;
}

#define ON_DESCRIPTOR(name, word, takes_space, parameters, ...)                                                        \
    int name parameters                                                                                                \
    {                                                                                                                  \
        CHANGE(finds_descriptor(descriptor, path), word, takes_space, -1)                                              \
        return REAL(name, __VA_ARGS__);                                                                                \
    }
ON_DESCRIPTOR(fsync, "fsync", TAKES_SPACE, (int descriptor), descriptor)
ON_DESCRIPTOR(fdatasync, "fsync", TAKES_SPACE, (int descriptor), descriptor)
ON_DESCRIPTOR(ftruncate, "truncate", REMOVES, (int descriptor, off_t size), descriptor, size)
ON_DESCRIPTOR(ftruncate64, "truncate", REMOVES, (int descriptor, off64_t size), descriptor, size)

#define ON_PATH(name, word, takes_space, folder, file, parameters, ...)                                                \
    int name parameters                                                                                                \
    {                                                                                                                  \
        CHANGE(finds(folder, file, path), word, takes_space, -1)                                                       \
        return REAL(name, __VA_ARGS__);                                                                                \
    }
#define TWO const char *source, const char *file
ON_PATH(truncate, "truncate", REMOVES, AT_FDCWD, file, (const char *file, off_t size), file, size)
ON_PATH(truncate64, "truncate", REMOVES, AT_FDCWD, file, (const char *file, off64_t size), file, size)
ON_PATH(rename, "rename to", REMOVES, AT_FDCWD, file, (TWO), source, file)
ON_PATH(renameat, "rename to", REMOVES, to, file, (int from, const char *source, int to, const char *file), from,
        source, to, file)
ON_PATH(renameat2, "rename to", REMOVES, to, file,
        (int from, const char *source, int to, const char *file, unsigned flags), from, source, to, file, flags)
ON_PATH(unlink, "remove", REMOVES, AT_FDCWD, file, (const char *file), file)
ON_PATH(unlinkat, "remove", REMOVES, folder, file, (int folder, const char *file, int flags), folder, file, flags)
ON_PATH(remove, "remove", REMOVES, AT_FDCWD, file, (const char *file), file)
ON_PATH(rmdir, "remove", REMOVES, AT_FDCWD, file, (const char *file), file)
ON_PATH(mkdir, "mkdir", TAKES_SPACE, AT_FDCWD, file, (const char *file, mode_t mode), file, mode)
ON_PATH(mkdirat, "mkdir", TAKES_SPACE, folder, file, (int folder, const char *file, mode_t mode), folder, file, mode)
ON_PATH(link, "link", TAKES_SPACE, AT_FDCWD, file, (TWO), source, file)
ON_PATH(linkat, "link", TAKES_SPACE, to, file, (int from, const char *source, int to, const char *file, int flags),
        from, source, to, file, flags)
ON_PATH(symlink, "link", TAKES_SPACE, AT_FDCWD, file, (TWO), source, file)
ON_PATH(symlinkat, "link", TAKES_SPACE, to, file, (const char *source, int to, const char *file), source, to, file)
