package main

import (
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gslbd/config"
)

// newLogger returns the process's logger, to standard error, and its level, which a reload may change.
func newLogger(c config.Log) (*zap.Logger, zap.AtomicLevel, error) {
	zc := zap.NewProductionConfig()
	zc.Sampling = nil // transitions are few, and each counts
	zc.DisableStacktrace = true
	zc.DisableCaller = true
	zc.EncoderConfig.TimeKey = "time"
	zc.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	zc.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	if c.Format == "text" {
		zc.Encoding = "console"
	}
	setLevel(zc.Level, c)
	log, err := zc.Build()
	if err != nil {
		return nil, zc.Level, fmt.Errorf("log: %w", err)
	}
	return log, zc.Level, nil
}

func setLevel(level zap.AtomicLevel, c config.Log) {
	l, err := zapcore.ParseLevel(c.Level)
	if err == nil { // config has validated it
		level.SetLevel(l)
	}
}
