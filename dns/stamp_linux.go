package dns

import (
	"os"
	"syscall"
)

func stampOf(info os.FileInfo) fileStamp {
	s := info.Sys().(*syscall.Stat_t)
	return fileStamp{device: s.Dev, inode: s.Ino, size: s.Size, modified: s.Mtim, change: s.Ctim}
}
