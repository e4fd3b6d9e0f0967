/* Addresses of Redis servers, users and passwords. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/opt.h"
#include "store/redis_impl.h"

enum { PASSWORD_MAX = 4096, DB_MAX = 1 << 20 };

#define DEFAULT_PORT ":6379"

int redis_take_user(struct redis *s, const char **rest, struct ds_err *err)
{
	const char *at = strncmp(*rest, "unix:", 5) == 0 ? NULL : strchr(*rest, '@');
	size_t n = at ? (size_t)(at - *rest) : 0;

	if (!at)
		return 0;
	if (memchr(*rest, ':', n))
		return err_set(err, DS_USAGE, "a password is not for a command line, where all can see it: say the "
			"file that has it");
	if (!n)
		return err_set(err, DS_USAGE, "bad address of a Redis server '%s': no user before the '@'", *rest);
	s->user = strndup(*rest, n);
	*rest = at + 1;
	return s->user ? 0 : err_nomem(err, n, "a user");
}

static int bad_address(const char *rest, struct ds_err *err)
{
	return err_set(err, DS_USAGE, "bad address of a Redis server '%s': HOST:PORT[/DB] or unix:PATH", rest);
}

/* One of them, [p, p + n). */
static int add_seed(struct redis *s, const char *p, size_t n, struct ds_err *err)
{
	char text[sizeof s->seeds->text];
	const char *colon = memchr(p, ':', n);
	bool unix_path = n > 5 && memcmp(p, "unix:", 5) == 0;
	bool port = colon && (*p != '[' || (n && p[n - 1] != ']'));

	if (memchr(p, '@', unix_path ? 0 : n))
		return err_set(err, DS_USAGE, "an address of a Redis server bears no password: that goes into a file "
			"(--password-file, --kv-password-file)");
	if (!n || s->nseeds == REDIS_SEEDS || n > sizeof text - 16)
		return err_set(err, DS_USAGE,
		"an empty address of a Redis server, one that is too long, or more than %d",
			REDIS_SEEDS);
	snprintf(text, sizeof text, "%s%.*s%s", unix_path ? "" : "tcp:", (int)n, p, unix_path || port ? ""
		: DEFAULT_PORT);
	return addr_parse(text, &s->seeds[s->nseeds++], err);
}

int redis_parse_one(struct redis *s, const char *rest, struct ds_err *err)
{
	const char *slash = strncmp(rest, "unix:", 5) == 0 ? NULL : strchr(rest, '/');

	if (slash && slash[1] && parse_int(slash + 1, 0, DB_MAX, &s->db))
		return bad_address(rest, err);
	return add_seed(s, rest, slash ? (size_t)(slash - rest) : strlen(rest), err);
}

int redis_parse_many(struct redis *s, const char *rest, struct ds_err *err)
{
	int rc = 0;

	s->cluster = true;
	while (!rc) {
		size_t n = strcspn(rest, ",");

		rc = add_seed(s, rest, n, err);
		if (!rest[n])
			break;
		rest += n + 1;
	}
	return rc;
}

int redis_read_password(struct redis *s, const char *path, struct ds_err *err)
{
	char line[PASSWORD_MAX + 1];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	ssize_t got = fd < 0 ? -1 : 1;
	int rc = 0;

	while (got > 0 && n < sizeof line && !memchr(line, '\n', n)) { /* it may be a pipe */
		got = read(fd, line + n, sizeof line - n);
		n += got > 0 ? (size_t)got : 0;
		if (got < 0 && errno == EINTR)
			got = 1;
	}
	if (got < 0) {
		rc = err_errno(err, DS_CONFIG, "cannot read the password file '%s'", path);
	} else if (n == sizeof line && !memchr(line, '\n', n)) {
		rc = err_set(err, DS_CONFIG, "the first line of the password file '%s' has more than %d bytes", path,
			PASSWORD_MAX);
	} else {
		line[n < sizeof line ? n : n - 1] = 0;
		line[strcspn(line, "\r\n")] = 0;
		if (!*line)
			rc = err_set(err, DS_CONFIG, "the first line of the password file '%s' is empty", path);
		else if (!(s->password = strdup(line)))
			rc = err_nomem(err, n, "a password");
	}
	explicit_bzero(line, sizeof line);
	if (fd >= 0)
		close(fd);
	return rc;
}
