#include "base/leftover.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/looking.h"

enum { MOST = 8 };

static _Atomic(const char *) paths[MOST];
static _Atomic int looking;

void leftover_add(const char *path)
{
	for (int i = 0; i < MOST; i++)
		if (!paths[i]) {
			paths[i] = path;
			break;
		}
}

void leftover_done(const char *path)
{
	for (int i = 0; i < MOST; i++)
		if (paths[i] == path)
			paths[i] = NULL;
	looking_wait(&looking);
}

/* opendir takes memory, which a signal handler may not.  Names come while others go: until there is nothing more. */
static void empty(int fd)
{
	_Alignas(struct dirent64) char some[4096];

	for (bool again = true; again && lseek(fd, 0, SEEK_SET) == 0;) {
		ssize_t n;

		again = false;
		while ((n = getdents64(fd, some, sizeof some)) > 0)
			for (ssize_t at = 0; at < n;) {
				const struct dirent64 *e = (const struct dirent64 *)(const void *)(some + at);

				if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
					again |= unlinkat(fd, e->d_name, 0) == 0;
				at += e->d_reclen;
			}
	}
}

int leftover_delete(const char *path)
{
	int fd;

	if (unlink(path) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -1;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0) {
		empty(fd);
		close(fd);
	}
	return rmdir(path);
}

void leftover_remove(void)
{
	looking_begin(&looking);
	for (int i = 0; i < MOST; i++) {
		const char *path = paths[i];

		if (path)
			leftover_delete(path);
	}
	looking_end(&looking);
}
