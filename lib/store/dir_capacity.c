/*
 * How much a directory may hold: file `capacity`, a size as options have it, so that whoever writes keeps to what was
 * said last, to whichever process.  A running one looks again before it makes a segment.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/opt.h"
#include "base/sync.h"
#include "store/dir_impl.h"

enum { SEGMENT_MIN = 64 << 10, CAPACITY_MIN = 64 << 10 };

static const char file[] = "capacity", fresh[] = "capacity.new";

static uint64_t segment_size(uint64_t segment, uint64_t capacity)
{
	uint64_t n = segment ? segment : capacity ? capacity / 64 : (uint64_t)256 << 20;

	if (!segment && n > (uint64_t)1 << 30)
		n = (uint64_t)1 << 30;
	if (n < SEGMENT_MIN)
		n = SEGMENT_MIN;
	if (capacity && n > capacity / 2) /* one to write, one to give up */
		n = capacity / 2;
	return n > (uint64_t)64 << 30 ? (uint64_t)64 << 30 : n / INDEX_UNIT * INDEX_UNIT;
}

static void set(struct dir *d, uint64_t capacity)
{
	__atomic_store_n(&d->capacity, capacity, __ATOMIC_RELAXED);
	__atomic_store_n(&d->segment_bytes, segment_size(d->base.o.segment, capacity), __ATOMIC_RELAXED);
}

static bool usable(uint64_t capacity)
{
	return !capacity || capacity >= CAPACITY_MIN;
}

/* 0: there is one; DS_NO: none; DS_CONFIG: it says nothing. */
static int read_file(struct dir *d, uint64_t *capacity, struct ds_err *err)
{
	char text[40] = "";
	int fd = file_at(d->fd, file, O_RDONLY, 0);
	ssize_t n;

	if (fd < 0 && errno == ENOENT)
		return err_set(err, DS_NO, "'%s' has no capacity", d->path);
	if (fd < 0)
		return err_errno(err, DS_IO, "cannot open '%s/%s'", d->path, file);
	n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n < 0)
		return err_errno(err, DS_IO, "cannot read '%s/%s'", d->path, file);
	while (n > 0 && isspace((unsigned char)text[n - 1]))
		text[--n] = 0;
	if (parse_size(text, capacity) || !usable(*capacity))
		return err_set(err, DS_CONFIG, "'%s/%s' is no size of at least %d: write one there, such as "
			"200G, or say it", d->path, file, CAPACITY_MIN);
	return 0;
}

static int write_file(struct dir *d, uint64_t capacity, struct ds_err *err)
{
	int fd = file_at(d->fd, fresh, O_WRONLY | O_CREAT | O_TRUNC, 0666), bad;

	bad = fd < 0 || dprintf(fd, "%" PRIu64 "\n", capacity) < 0 || fsync(fd);
	if (fd >= 0 && close(fd))
		bad = 1;
	if (bad || renameat(d->fd, fresh, d->fd, file)) {
		err_errno(err, errno == ENOSPC || errno == EDQUOT ? DS_TEMP : DS_IO, "cannot write '%s/%s'", d->path,
			file);
		unlinkat(d->fd, fresh, 0);
		return err->code;
	}
	return sync_fd(d->fd, d->path, err);
}

/* A disk that is full is no reason not to open: what is there can give way.  It is written later then. */
static int remember(struct dir *d, struct ds_err *err)
{
	uint64_t is, to_be = d->base.o.capacity == STORE_NO_LIMIT ? 0 : d->base.o.capacity;
	int rc = read_file(d, &is, err) || is != to_be ? write_file(d, to_be, err) : 0;

	d->said = rc == DS_TEMP;
	set(d, to_be);
	return rc == DS_TEMP ? 0 : rc;
}

int capacity_open(struct dir *d, struct ds_err *err)
{
	uint64_t n = 0;
	int rc;

	if (d->base.o.capacity && !d->base.o.read_only)
		return remember(d, err);
	rc = read_file(d, &n, err);
	set(d, rc ? 0 : n);
	return rc == DS_NO || d->base.o.read_only ? 0 : rc;
}

void capacity_look(struct dir *d)
{
	struct ds_err err;
	uint64_t n;

	if (d->said)
		remember(d, &err);
	else if (!read_file(d, &n, &err) && n != dir_capacity(d)) /* else it stays as it was */
		set(d, n);
}

int capacity_option(char *path, struct store_options *o, struct ds_err *err)
{
	static const char option[] = "?capacity=";
	char *at = strrchr(path, '?');
	uint64_t n;

	if (at && strncmp(at, option, sizeof option - 1) == 0) {
		if (parse_size(at + sizeof option - 1, &n))
			return err_set(err, DS_USAGE, "'dir:%s': what follows 'capacity=' is no size, such as 200G",
				path);
		if (o->capacity || o->read_only)
			return err_set(err, DS_USAGE, o->capacity ? "'dir:%s': a capacity is said twice" :
				"'dir:%s': a capacity says nothing where a store is only read", path);
		o->capacity = n ? n : STORE_NO_LIMIT;
		*at = 0;
		at = strrchr(path, '?');
	}
	if (at && strchr(at, '=') && !strchr(at, '/'))
		return err_set(err, DS_USAGE, "'dir:%s': what follows '?' may be 'capacity=SIZE', once", path);
	if (!usable(o->capacity) && !o->read_only)
		return err_set(err, DS_USAGE, "a store of %llu bytes holds nothing; the least is %d",
			(unsigned long long)o->capacity, CAPACITY_MIN);
	return 0;
}
