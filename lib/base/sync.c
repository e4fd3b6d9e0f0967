#include "base/sync.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int sync_fd(int fd, const char *name, struct ds_err *err)
{
	int rc;

	do
		rc = fsync(fd);
	while (rc && errno == EINTR);
	return !rc || errno == EINVAL ? 0 : err_errno(err, DS_IO, "cannot write '%s' to disk", name);
}

int sync_dir(const char *path, struct ds_err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

	if (fd < 0)
		return errno == EACCES ? 0 /* we may write there, but not look */
			: err_errno(err, DS_IO, "cannot open '%s'", path);
	rc = sync_fd(fd, path, err);
	close(fd);
	return rc;
}

int sync_parent(const char *path, struct ds_err *err)
{
	const char *slash = strrchr(path, '/');
	char *dir;
	int rc;

	if (!slash)
		return sync_dir(".", err);
	dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
	if (!dir)
		return err_nomem(err, strlen(path), "a path");
	rc = sync_dir(dir, err);
	free(dir);
	return rc;
}
