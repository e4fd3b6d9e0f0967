/* Names of segments, marks of frames, locks of files. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "store/dir_impl.h"

static const off_t PIN_PLACE = (off_t)1 << 62;

void segment_name(const struct segment_id *id, const char *suffix, char name[SEGMENT_NAME])
{
	snprintf(name, SEGMENT_NAME, "%c-%016" PRIx64 "-%016" PRIx64 "%s", id->main ? 'm' : 's', id->time, id->writer,
		suffix);
}

bool segment_parse(const char *name, const char *suffix, struct segment_id *id)
{
	char again[SEGMENT_NAME], *end;

	if ((name[0] != 's' && name[0] != 'm') || name[1] != '-')
		return false;
	id->main = name[0] == 'm';
	id->time = strtoull(name + 2, &end, 16);
	if (*end != '-')
		return false;
	id->writer = strtoull(end + 1, NULL, 16);
	segment_name(id, suffix, again);
	return strcmp(again, name) == 0;
}

int segment_order(const struct segment_id *a, const struct segment_id *b)
{
	if (a->time != b->time)
		return a->time < b->time ? -1 : 1;
	if (a->writer != b->writer)
		return a->writer < b->writer ? -1 : 1;
	return (int)a->main - (int)b->main;
}

uint64_t segment_mark(const struct keyed *secret, const struct segment_id *id, uint64_t offset)
{
	const uint64_t words[] = { id->time, id->writer, id->main, offset };
	uint64_t mark = keyed_hash(secret, words, 4);

	return mark ? mark : 1;
}

static bool lock_description(int fd, enum file_lock how, bool wait)
{
	struct flock l = { .l_whence = SEEK_SET, .l_len = PIN_PLACE,
		.l_type = how == LOCK_NONE ? F_UNLCK : how == LOCK_SHARED ? F_RDLCK : F_WRLCK };
	int rc;

	do
		rc = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &l);
	while (rc && errno == EINTR);
	return !rc;
}

/* Far behind the end of any file, so that it is apart from the locks above, also where those are of this kind. */
bool pin_lock(int fd, enum file_lock how)
{
	struct flock l = { .l_whence = SEEK_SET, .l_start = PIN_PLACE, .l_len = 1,
		.l_type = how == LOCK_NONE ? F_UNLCK : how == LOCK_SHARED ? F_RDLCK : F_WRLCK };
	int rc;

	do
		rc = fcntl(fd, F_OFD_SETLK, &l);
	while (rc && errno == EINTR);
	if (!rc || errno != EBADF)
		return !rc || (errno != EAGAIN && errno != EACCES);
	/* A file that may only be read: nobody else may have it. */
	return fcntl(fd, F_OFD_GETLK, &l) || l.l_type == F_UNLCK;
}

bool file_lock(int fd, enum file_lock how, bool wait)
{
	int op = how == LOCK_NONE ? LOCK_UN : how == LOCK_SHARED ? LOCK_SH : LOCK_EX, rc;

	do
		rc = flock(fd, op | (wait ? 0 : LOCK_NB));
	while (rc && errno == EINTR);
	if (rc && (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
		return lock_description(fd, how, wait);
	return !rc;
}

bool dir_read(int fd, void *p, size_t n, uint64_t at)
{
	uint8_t *to = p;

	while (n) {
		ssize_t got = pread(fd, to, n, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (!got)
			errno = 0;
		if (got <= 0)
			return false;
		to += got;
		n -= (size_t)got;
		at += (uint64_t)got;
	}
	return true;
}

bool dir_write(int fd, const void *p, size_t n, uint64_t at)
{
	const uint8_t *from = p;

	while (n) {
		ssize_t put = pwrite(fd, from, n, (off_t)at);

		if (put < 0 && errno == EINTR)
			continue;
		if (!put)
			errno = EIO;
		if (put <= 0)
			return false;
		from += put;
		n -= (size_t)put;
		at += (uint64_t)put;
	}
	return true;
}
