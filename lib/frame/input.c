#include "frame/input.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/std_fds.h"
#include "frame/hello.h"

int input_open(struct input *in, const char *path, bool force, struct ds_err *err)
{
	bool standard = strcmp(path, "-") == 0;
	struct stat st;
	int rc = 0;

	*in = (struct input){ .fd = STDIN_FILENO, .name = standard ? "<stdin>" : path };
	if (!standard)
		in->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (in->fd < 0)
		return err_errno(err, DS_NOINPUT, "cannot open '%s'", path);
	if ((standard && std_fd_closed(in->fd)) || fstat(in->fd, &st))
		rc = err_errno(err, DS_NOINPUT, "cannot read '%s'", in->name);
	else if (standard && isatty(in->fd) && !force)
		rc = err_set(err, DS_USAGE, "frames do not come from a terminal: use a pipe or name a file");
	else if (S_ISDIR(st.st_mode))
		rc = err_set(err, DS_NOINPUT, "cannot read '%s': it is a directory", in->name);
	else
		in->seekable = S_ISREG(st.st_mode) && lseek(in->fd, 0, SEEK_CUR) == 0;
	if (rc)
		input_close(in);
	return rc;
}

void input_close(struct input *in)
{
	if (in->fd > STDERR_FILENO)
		close(in->fd);
	in->fd = -1;
}

int input_order(const struct frame *f, struct ds_err *err)
{
	struct hello h;

	if (f->number == 0)
		return hello_get(f, &h, err);
	if (f->type == FRAME_HELLO)
		return err_set(err, DS_DATA, "frame %llu is a second hello", (unsigned long long)f->number);
	return 0;
}

int input_frames(struct input *in, uint64_t max_frame, bool strict, input_fn each, void *ctx, uint64_t *bytes,
	struct ds_err *err)
{
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	int rc = frame_reader_new(&r, in->fd, in->name, max_frame, err);

	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, err);
		if (!rc && ev == FRAME_AGAIN) /* someone else has made our descriptor non-blocking */
			usleep(10000);
		if (rc || ev != FRAME_BODY)
			continue;
		rc = strict ? input_order(f, err) : 0;
		if (!rc)
			rc = each(f, ctx, err);
		if (rc == DS_DATA) /* what is wrong is the frame; other errors are not the input's */
			err_prefix(err, "'%s'", in->name);
	}
	if (bytes)
		*bytes = r ? frame_reader_bytes(r) : 0;
	frame_reader_free(r);
	return rc == INPUT_STOP ? 0 : rc;
}
